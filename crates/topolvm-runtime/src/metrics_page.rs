//! The metrics page of a program in the text format of OpenMetrics: what is in a registry, and what is collected for
//! each request.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

/// Appends metrics to a page, which it receives and returns: a page can have a megabyte.
type Collector = dyn Fn(String) -> Pin<Box<dyn Future<Output = String> + Send>> + Send + Sync;

/// The metrics page of a program. Clones share what it is made of.
#[derive(Clone)]
pub struct MetricsPage {
    registry: Arc<Registry>,
    collector: Option<Arc<Collector>>,
}

impl MetricsPage {
    /// Adds a collector: a function that appends metrics to the page whenever the page is asked for. It must come to an
    /// end soon, whatever it reads.
    #[must_use]
    pub fn with_collector<F>(self, collect: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = String> + Send + 'static,
    {
        Self { collector: Some(Arc::new(move |page| Box::pin(collect(page)))), ..self }
    }

    /// Renders the page.
    pub(crate) async fn render(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        encode_registry(&mut page, &self.registry)?;
        if let Some(collect) = &self.collector {
            page = collect(page).await;
        }
        encode_eof(&mut page)?;
        Ok(page)
    }
}

impl From<Arc<Registry>> for MetricsPage {
    fn from(registry: Arc<Registry>) -> Self {
        Self { registry, collector: None }
    }
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsPage").field("has_collector", &self.collector.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[tokio::test]
    async fn metrics_page_has_collected_text_after_the_registry() {
        let mut registry = Registry::default();
        registry.register("a", "A", Gauge::<i64>::default());
        let page = MetricsPage::from(Arc::new(registry));
        assert_eq!(page.render().await.unwrap(), "# HELP a A.\n# TYPE a gauge\na 0\n# EOF\n");
        let page = page.with_collector(|page| async move { page + "b 1\n" });
        assert_eq!(page.render().await.unwrap(), "# HELP a A.\n# TYPE a gauge\na 0\nb 1\n# EOF\n");
    }
}
