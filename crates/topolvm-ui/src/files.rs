//! The files of the page, which are in the program.

use axum::body::Body;
use http::{Response, header};

/// A file of the page.
pub(crate) struct File {
    /// Path in the URL.
    pub(crate) path: &'static str,
    content_type: &'static str,
    content: &'static str,
}

/// All files.
pub(crate) const FILES: [File; 10] = [
    File { path: "/", content_type: "text/html; charset=utf-8", content: include_str!("page/index.html") },
    File { path: "/page.css", content_type: "text/css; charset=utf-8", content: include_str!("page/page.css") },
    File { path: "/icon.svg", content_type: "image/svg+xml", content: include_str!("page/icon.svg") },
    script("/dom.js", include_str!("page/dom.js")),
    script("/problems.js", include_str!("page/problems.js")),
    script("/capacity.js", include_str!("page/capacity.js")),
    script("/storage.js", include_str!("page/storage.js")),
    script("/details.js", include_str!("page/details.js")),
    script("/volumes.js", include_str!("page/volumes.js")),
    script("/page.js", include_str!("page/page.js")),
];

const fn script(path: &'static str, content: &'static str) -> File {
    File { path, content_type: "text/javascript; charset=utf-8", content }
}

impl File {
    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.content));
        let value = header::HeaderValue::from_static(self.content_type);
        response.headers_mut().insert(header::CONTENT_TYPE, value);
        response
    }
}
