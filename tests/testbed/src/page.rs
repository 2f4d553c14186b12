//! Code blocks of the pages of the documentation.

/// A code block between two fences of a page in Markdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeBlock {
    /// Text of the nearest heading above, of any level.
    pub section: String,
    /// Line of the first fence, from 1.
    pub line: usize,
    /// Language mark: the info string of the first fence.
    pub language: String,
    /// Lines between the fences, without the indentation of the first fence.
    pub text: String,
}

/// Returns the code blocks of a page, in their order.
#[must_use]
pub fn code_blocks(page: &str) -> Vec<CodeBlock> {
    let (mut blocks, mut section, mut open) = (Vec::new(), "", None::<(usize, CodeBlock)>);
    for (line, text) in (1..).zip(page.lines()) {
        let inner = text.trim_start();
        let fence = inner.strip_prefix("```");
        open = match (open, fence) {
            (None, Some(language)) => {
                let language = language.trim().to_owned();
                let block = CodeBlock { section: section.to_owned(), line, language, text: String::new() };
                Some((text.len() - inner.len(), block))
            }
            (None, None) => {
                section = heading(text).unwrap_or(section);
                None
            }
            (Some((_, block)), Some(_)) => {
                blocks.push(block);
                None
            }
            (Some((indentation, mut block)), None) => {
                block.text += text.get(indentation..).unwrap_or(inner);
                block.text.push('\n');
                Some((indentation, block))
            }
        };
    }
    blocks
}

/// Returns the text of a heading.
fn heading(line: &str) -> Option<&str> {
    let (level, text) = line.split_once(' ')?;
    (!level.is_empty() && level.bytes().all(|byte| byte == b'#')).then(|| text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_nearest_heading_its_mark_and_its_lines() {
        let page = "# Page\n\n```sh\n# no heading\nls\n```\n\n### Part\n\n1. Do\n   ```\n   a\n     b\n   ```\n";
        let block = |section: &str, line, language: &str, text: &str| CodeBlock {
            section: section.to_owned(),
            line,
            language: language.to_owned(),
            text: text.to_owned(),
        };
        assert_eq!(
            code_blocks(page),
            [block("Page", 3, "sh", "# no heading\nls\n"), block("Part", 11, "", "a\n  b\n")]
        );
    }
}
