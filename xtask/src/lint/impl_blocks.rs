//! Size of types, and cycles of method calls: between the files with the `impl` blocks of a type, which import nothing
//! from each other.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, FnArg, ImplItem, ImplItemFn, ItemImpl, ItemMod, Pat, PatType, Type};

use super::finding::Finding;
use super::source::Source;

/// Most files with `impl` blocks of a type.
const MOST_FILES: usize = 5;
/// Most methods of a type.
const MOST_METHODS: usize = 40;

/// Types that may be larger, with the reason.
const EXCEPTIONS: [(&str, &str); 2] = [
    ("LvmCommand", "a constructor for each command of LVM"),
    ("Lvm", "a method for each thing that LVM is asked to do"),
];

/// Finds types with too many methods or files, and files of a type that call each other in a cycle.
pub(crate) fn find_large_types(sources: &[Source]) -> Vec<Finding> {
    let mut types: BTreeMap<(&str, String), TypeMethods<'_>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_product() && !source.is_test()) {
        let mut impls = Impls { source, types: BTreeMap::new() };
        // A file that does not parse is a finding of the compiler
        if let Ok(file) = syn::parse_file(&source.text) {
            impls.visit_file(&file);
        }
        for (name, methods) in impls.types {
            types.entry((source.package(), name)).or_default().methods.extend(methods);
        }
    }
    let is_checked = |name: &str| !EXCEPTIONS.iter().any(|(exception, _)| *exception == name);
    types.iter().filter(|((_, name), _)| is_checked(name)).flat_map(|((_, name), found)| found.check(name)).collect()
}

/// A method of a type.
struct Method<'a> {
    source: &'a Source,
    line: usize,
    name: String,
    /// Names of the methods that it calls on a value of its own type.
    calls: BTreeSet<String>,
}

/// The methods of a type in the whole package.
#[derive(Default)]
struct TypeMethods<'a> {
    methods: Vec<Method<'a>>,
}

impl<'a> TypeMethods<'a> {
    fn check(&self, name: &str) -> Vec<Finding> {
        let files: BTreeSet<_> = self.methods.iter().map(|method| method.source.file.as_str()).collect();
        let Some(first) = self.methods.first() else { return Vec::new() };
        let mut findings = Vec::new();
        let mut add = |message| findings.push(Finding::new(first.source, first.line, message));
        if files.len() > MOST_FILES {
            add(format!("{name} has impl blocks in {} files, at most {MOST_FILES}: split the type", files.len()));
        }
        if self.methods.len() > MOST_METHODS {
            add(format!("{name} has {} methods, at most {MOST_METHODS}: split the type", self.methods.len()));
        }
        findings.extend(self.find_cycles(name));
        findings
    }

    /// Finds the files whose methods call each other in a cycle; one finding for each pair of ends.
    fn find_cycles(&self, name: &str) -> Vec<Finding> {
        let edges = self.edges();
        let mut findings = Vec::new();
        for (&(from, to), method) in &edges {
            if from < to && reaches(&edges, to, from) {
                let message = format!(
                    "methods of {name} in {from} and {to} call each other in a cycle: move what both need to a type \
                     of its own"
                );
                findings.push(Finding::new(method.source, method.line, message));
            }
        }
        findings
    }

    /// Returns which file calls methods of which other one, with a method that does.
    fn edges(&self) -> BTreeMap<(&'a str, &'a str), &Method<'a>> {
        let file_of: BTreeMap<_, _> =
            self.methods.iter().map(|method| (method.name.as_str(), method.source.file.as_str())).collect();
        let mut edges = BTreeMap::new();
        for method in &self.methods {
            for called in &method.calls {
                match file_of.get(called.as_str()) {
                    Some(&file) if file != method.source.file => {
                        edges.entry((method.source.file.as_str(), file)).or_insert(method);
                    }
                    Some(_) | None => {}
                }
            }
        }
        edges
    }
}

fn reaches<T>(edges: &BTreeMap<(&str, &str), T>, start: &str, end: &str) -> bool {
    let mut seen = BTreeSet::from([start]);
    let mut open = vec![start];
    while let Some(from) = open.pop() {
        if from == end {
            return true;
        }
        open.extend(edges.keys().filter(|(file, _)| *file == from).map(|(_, to)| *to).filter(|to| seen.insert(to)));
    }
    false
}

/// Collects the methods in the `impl` blocks of a file that are of no trait.
struct Impls<'a> {
    source: &'a Source,
    types: BTreeMap<String, Vec<Method<'a>>>,
}

impl Visit<'_> for Impls<'_> {
    fn visit_item_mod(&mut self, module: &ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, block: &ItemImpl) {
        let Some(name) = type_name(&block.self_ty).filter(|_| block.trait_.is_none()) else { return };
        if is_for_tests(&block.attrs) {
            return;
        }
        for item in &block.items {
            let ImplItem::Fn(method) = item else { continue };
            let mut calls =
                Calls { type_name: &name, values: BTreeSet::from(["self".to_owned()]), called: BTreeSet::new() };
            calls.visit_impl_item_fn(method);
            let method = self.method(method, calls.called);
            self.types.entry(name.clone()).or_default().push(method);
        }
    }
}

impl<'a> Impls<'a> {
    fn method(&self, method: &ImplItemFn, calls: BTreeSet<String>) -> Method<'a> {
        let line = method.sig.ident.span().start().line;
        Method { source: self.source, line, name: method.sig.ident.to_string(), calls }
    }
}

/// Collects the methods that are called on `self` and on other values of the type.
struct Calls<'a> {
    type_name: &'a str,
    /// Names of the values that are of the type.
    values: BTreeSet<String>,
    called: BTreeSet<String>,
}

impl Calls<'_> {
    fn add_value(&mut self, value: &PatType) {
        let is_own = type_name(&value.ty).is_some_and(|name| name == "Self" || name == self.type_name);
        if let Pat::Ident(name) = &*value.pat
            && is_own
        {
            self.values.insert(name.ident.to_string());
        }
    }

    /// Adds the calls in the tokens of a macro.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for window in tokens.windows(4) {
            if let [TokenTree::Ident(value), TokenTree::Punct(dot), TokenTree::Ident(method), TokenTree::Group(_)] =
                window
                && dot.as_char() == '.'
                && self.values.contains(&value.to_string())
            {
                self.called.insert(method.to_string());
            }
        }
        for token in tokens {
            if let TokenTree::Group(group) = token {
                self.add_tokens(group.stream());
            }
        }
    }
}

impl Visit<'_> for Calls<'_> {
    fn visit_fn_arg(&mut self, argument: &FnArg) {
        if let FnArg::Typed(value) = argument {
            self.add_value(value);
        }
    }

    fn visit_pat_type(&mut self, value: &PatType) {
        self.add_value(value);
    }

    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        if let Expr::Path(path) = &*call.receiver
            && path.path.get_ident().is_some_and(|name| self.values.contains(&name.to_string()))
        {
            self.called.insert(call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &syn::ExprPath) {
        let segments: Vec<_> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [first, method] = segments.as_slice()
            && (first == "Self" || first == self.type_name)
        {
            self.called.insert(method.clone());
        }
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        match call.parse_body_with(Punctuated::<Expr, syn::Token![,]>::parse_terminated) {
            Ok(arguments) => arguments.iter().for_each(|argument| self.visit_expr(argument)),
            Err(_) => self.add_tokens(call.tokens.clone()),
        }
    }
}

/// Returns the name of a type without its module and its arguments; `None` for types that have no name.
fn type_name(type_: &Type) -> Option<String> {
    if let Type::Reference(reference) = type_ {
        return type_name(&reference.elem);
    }
    let Type::Path(path) = type_ else { return None };
    Some(path.path.segments.last()?.ident.to_string())
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(files: &[(&str, &str)]) -> Vec<String> {
        let parse = |(name, text): &(&str, &str)| Source::parse(&format!("crates/a/src/{name}"), (*text).to_owned());
        let sources: Vec<_> = files.iter().map(|file| parse(file).unwrap()).collect();
        find_large_types(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn methods_that_call_each_other_across_files_are_found() {
        let found = find(&[
            ("a.rs", "impl<T> E<T> { fn a(&self) { self.b() } }"),
            ("b.rs", "impl<T> E<T> { fn b(self) { run(async move |engine: Self| vec![engine.c()]) } }"),
            ("c.rs", "impl<T> E<T> { fn c(&self) { tracing::info!(x = %self.a(), \"y\") } }"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        let expected = "crates/a/src/a.rs:1: methods of E in crates/a/src/a.rs and crates/a/src/b.rs call each other";
        assert!(found[0].starts_with(expected), "{found:?}");
    }

    #[test]
    fn calls_of_others_and_of_tests_are_no_cycle() {
        let found = find(&[
            ("a.rs", "impl E { fn a(&self) { self.b() } }"),
            (
                "b.rs",
                "impl E { fn b(&self, other: F) { other.a() } }\n#[cfg(test)] mod t { impl E { fn t() { E::a() } } }",
            ),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn size_of_a_type_is_counted_over_its_files() {
        let method = |number: usize| format!("fn m{number}() {{}}");
        let methods = |first: usize| (first..first + 21).map(method).collect::<Vec<_>>().concat();
        let found = find(&[
            ("a.rs", &format!("impl E {{ {} }}", methods(0))),
            ("b.rs", &format!("impl E {{ {} }}", methods(21))),
        ]);
        assert_eq!(found, ["crates/a/src/a.rs:1: E has 42 methods, at most 40: split the type"]);
        let texts: Vec<_> =
            (0..6).map(|number| (format!("f{number}.rs"), format!("impl E {{ fn m{number}() {{}} }}"))).collect();
        let files: Vec<_> = texts.iter().map(|(file, text)| (file.as_str(), text.as_str())).collect();
        assert_eq!(find(&files), ["crates/a/src/f0.rs:1: E has impl blocks in 6 files, at most 5: split the type"]);
    }
}
