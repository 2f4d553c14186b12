//! The Rust files of the repository, and the paths (`tonic::Status`) that their product code names.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{ItemUse, UseTree};

/// Directories with Rust code. The first has the product.
const DIRECTORIES: [&str; 5] = ["crates", "images", "xtask", "tests", "fuzz"];

/// A Rust file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path from the top of the repository.
    pub(crate) file: String,
    /// Contents.
    pub(crate) text: String,
    /// Paths that the file names outside of `#[cfg(test)]`; none in files that are tests as a whole.
    pub(crate) paths: Vec<NamedPath>,
}

/// A path of two or more segments in an expression, a type or a macro, or one of any length that a `use` imports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamedPath {
    /// Line of its last segment, from 1.
    pub(crate) line: usize,
    /// Segments as they are written; `*` for all of a module.
    pub(crate) segments: Vec<String>,
    /// Name that a `use` gives it in the module.
    pub(crate) import: Option<String>,
}

impl Source {
    /// Reads all Rust files below the top of the repository, in the order of their paths.
    pub(crate) fn read_all(top: &Path) -> anyhow::Result<Vec<Self>> {
        let mut sources = Vec::new();
        for directory in DIRECTORIES {
            read_directory(top, Path::new(directory), &mut sources)?;
        }
        sources.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(sources)
    }

    /// Parses the text of a file.
    pub(crate) fn parse(file: &str, text: String) -> anyhow::Result<Self> {
        let mut paths = Vec::new();
        if !is_test(file) {
            let tokens: TokenStream = text.parse().map_err(|error| anyhow::anyhow!("{file}: {error}"))?;
            collect_paths(tokens, &mut paths).with_context(|| format!("parse {file}"))?;
        }
        Ok(Self { file: file.to_owned(), text, paths })
    }

    /// Directory of the file's package: `lvmd` of `crates/lvmd/src/args.rs`.
    pub(crate) fn package(&self) -> &str {
        match self.file.split('/').collect::<Vec<_>>().as_slice() {
            ["crates" | "tests", package, ..] | [package, ..] => package,
            [] => "",
        }
    }

    /// Returns true for files of the programs that users run.
    pub(crate) fn is_product(&self) -> bool {
        self.file.starts_with("crates/") && self.package() != "topolvm-testkit"
    }

    /// Returns true for files that are compiled for tests only.
    pub(crate) fn is_test(&self) -> bool {
        is_test(&self.file)
    }
}

fn read_directory(top: &Path, directory: &Path, sources: &mut Vec<Source>) -> anyhow::Result<()> {
    let path = top.join(directory);
    for entry in fs::read_dir(&path).with_context(|| format!("list {}", path.display()))? {
        let name = entry?.file_name();
        let file = directory.join(&name);
        if top.join(&file).is_dir() {
            // Build directories of fuzz and tests
            if name != "target" {
                read_directory(top, &file, sources)?;
            }
        } else if file.extension().is_some_and(|extension| extension == "rs") {
            let name = file.to_str().with_context(|| format!("{} is not UTF-8", file.display()))?;
            let text = fs::read_to_string(top.join(name)).with_context(|| format!("read {name}"))?;
            sources.push(Source::parse(name, text)?);
        }
    }
    Ok(())
}

/// Returns true for paths of files that are compiled for tests only.
fn is_test(file: &str) -> bool {
    file.contains("/tests/") || file.ends_with("/tests.rs")
}

/// Appends the paths in a stream of tokens, macros included, without items that have the attribute `#[cfg(test)]`.
fn collect_paths(tokens: TokenStream, paths: &mut Vec<NamedPath>) -> syn::Result<()> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut rest = tokens.as_slice();
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (TokenTree::Punct(hash), [TokenTree::Group(attribute), tail @ ..])
                if hash.as_char() == '#' && attribute.stream().to_string().replace(' ', "") == "cfg(test)" =>
            {
                skip_item(tail)
            }
            // Not the `use<'a>` of a type
            (TokenTree::Ident(word), [TokenTree::Ident(_) | TokenTree::Group(_), ..]) if word == "use" => {
                let end = rest.iter().position(|token| is_punct(token, ';')).unwrap_or(rest.len() - 1);
                let (item, tail) = rest.split_at(end + 1);
                collect_imports(&syn::parse2::<ItemUse>(item.iter().cloned().collect())?.tree, &[], paths);
                tail
            }
            (TokenTree::Ident(_), _) => collect_path(rest, paths),
            (TokenTree::Group(group), tail) => {
                collect_paths(group.stream(), paths)?;
                tail
            }
            (TokenTree::Punct(_) | TokenTree::Literal(_), tail) => tail,
        };
    }
    Ok(())
}

/// Returns what follows an item: it ends with a semicolon or a block.
pub(super) fn skip_item(tokens: &[TokenTree]) -> &[TokenTree] {
    let is_block = |token: &TokenTree| {
        let TokenTree::Group(group) = token else { return false };
        group.delimiter() == Delimiter::Brace
    };
    let end = tokens.iter().position(|token| is_punct(token, ';') || is_block(token));
    end.and_then(|end| tokens.get(end + 1..)).unwrap_or_default()
}

pub(super) fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

/// Appends the path at the beginning of the tokens if it has several segments, and returns what follows.
fn collect_path<'a>(tokens: &'a [TokenTree], paths: &mut Vec<NamedPath>) -> &'a [TokenTree] {
    let (mut segments, mut line, mut rest) = (Vec::new(), 0, tokens);
    while let [TokenTree::Ident(segment), tail @ ..] = rest {
        segments.push(segment.to_string());
        line = segment.span().start().line;
        rest = tail;
        if let [first, second, tail @ ..] = tail
            && is_punct(first, ':')
            && is_punct(second, ':')
            && matches!(tail, [TokenTree::Ident(_), ..])
        {
            rest = tail;
        } else {
            break;
        }
    }
    if segments.len() > 1 {
        paths.push(NamedPath { line, segments, import: None });
    }
    rest
}

/// Appends what a `use` imports, one path for each name.
fn collect_imports(tree: &UseTree, above: &[String], paths: &mut Vec<NamedPath>) {
    let below = |name: String| [above, &[name]].concat();
    match tree {
        UseTree::Path(path) => collect_imports(&path.tree, &below(path.ident.to_string()), paths),
        UseTree::Group(group) => group.items.iter().for_each(|tree| collect_imports(tree, above, paths)),
        UseTree::Name(name) => {
            let segments = if name.ident == "self" { above.to_vec() } else { below(name.ident.to_string()) };
            let import = segments.last().cloned();
            paths.push(NamedPath { line: name.ident.span().start().line, segments, import });
        }
        UseTree::Rename(name) => {
            let segments = if name.ident == "self" { above.to_vec() } else { below(name.ident.to_string()) };
            let line = name.ident.span().start().line;
            paths.push(NamedPath { line, segments, import: Some(name.rename.to_string()) });
        }
        UseTree::Glob(glob) => {
            let line = glob.star_token.spans.first().map_or(0, |span| span.start().line);
            paths.push(NamedPath { line, segments: below("*".to_owned()), import: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines and paths of a text; of imports with their names.
    fn paths(text: &str) -> Vec<String> {
        let source = Source::parse("crates/lvm/src/a.rs", text.to_owned()).unwrap();
        let render = |path: &NamedPath| {
            let import = path.import.as_ref().map(|name| format!(" as {name}")).unwrap_or_default();
            format!("{} {}{import}", path.line, path.segments.join("::"))
        };
        source.paths.iter().map(render).collect()
    }

    #[test]
    fn nested_imports_are_listed_one_by_one() {
        let text = "pub(crate) use a::{self, b::{C, D as E},\n  f::*};\n#[derive(Debug)]\nuse g;";
        let expected = ["1 a as a", "1 a::b::C as C", "1 a::b::D as E", "2 a::f::*", "4 g as g"];
        assert_eq!(paths(text), expected);
    }

    #[test]
    fn paths_in_code_types_attributes_and_macros_are_listed() {
        let text = "#[derive(clap::Args)]\nstruct A(b::C<d::E>);\nfn f() -> impl X + use<'_> { vec![g::h::<I>(x)] }";
        assert_eq!(paths(text), ["1 clap::Args", "2 b::C", "2 d::E", "3 g::h"]);
    }

    #[test]
    fn tests_are_left_out() {
        let text = "#[cfg(test)]\nmod tests { use a::B; }\n#[cfg(test)]\nuse c::D;\nuse e::F;";
        assert_eq!(paths(text), ["5 e::F as F"]);
        for file in ["crates/lvm/src/a/tests.rs", "crates/lvm/tests/it/main.rs"] {
            assert_eq!(Source::parse(file, "use e::F;".to_owned()).unwrap().paths, []);
        }
    }

    #[test]
    fn a_file_that_is_no_rust_is_named() {
        let error = Source::parse("crates/lvm/src/a.rs", "use a::;".to_owned()).unwrap_err();
        assert!(format!("{error:#}").starts_with("parse crates/lvm/src/a.rs: "), "{error:#}");
    }
}
