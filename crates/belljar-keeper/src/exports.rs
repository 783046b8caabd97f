//! Limit on the exports of images of a tenant: each is a file of the server's disk until it has been read.

use std::collections::HashMap;
use std::sync::Arc;

use belljar_image::ImageExport;
use parking_lot::Mutex;

/// Maximum number of exports of a tenant that have not been read to their end. Source: docs/images.md.
pub(crate) const MAX_EXPORTS: usize = 2;

/// Numbers of exports by tenant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exports(Arc<Mutex<HashMap<String, usize>>>);

/// An export that has not been read to its end. It counts until this is dropped.
#[derive(Debug)]
pub struct ExportPlace {
    exports: Exports,
    tenant: String,
}

/// An exported image.
#[derive(Debug)]
pub struct ExportedImage {
    /// Its name.
    pub name: String,
    /// The file.
    pub image: ImageExport,
    /// Has to live as long as the file is read.
    pub place: ExportPlace,
}

impl Exports {
    /// Begins an export, unless the tenant has the maximum number of them.
    pub(crate) fn begin(&self, tenant: &str) -> Option<ExportPlace> {
        let mut all = self.0.lock();
        let count = all.entry(tenant.to_owned()).or_default();
        if *count >= MAX_EXPORTS {
            return None;
        }
        *count += 1;
        Some(ExportPlace { exports: self.clone(), tenant: tenant.to_owned() })
    }
}

impl Drop for ExportPlace {
    fn drop(&mut self) {
        let mut all = self.exports.0.lock();
        if let Some(count) = all.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_of_a_tenant_are_few() {
        let exports = Exports::default();
        let held = [exports.begin("a").unwrap(), exports.begin("a").unwrap()];
        assert!(exports.begin("a").is_none() && exports.begin("b").is_some());
        drop(held);
        assert!(exports.begin("a").is_some() && exports.0.lock().is_empty());
    }
}
