//! How many streams one key may hold open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::problem::{Code, Problem};

/// Counts open streams by key.
#[derive(Clone)]
pub(crate) struct StreamSlots {
    most: usize,
    open: Arc<Mutex<HashMap<String, usize>>>,
}

/// One open stream. It counts for as long as this is held.
pub(crate) struct StreamSlot {
    slots: StreamSlots,
    key: String,
}

impl StreamSlots {
    /// At most `most` streams for each key.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, open: Arc::default() }
    }

    /// Opens one more for this key.
    ///
    /// # Errors
    /// When there are as many as there may be.
    pub(crate) fn take(&self, key: &str) -> Result<StreamSlot, Problem> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(key.to_owned()).or_default();
        if *count >= self.most {
            let detail = format!("streams: {} of {} are open; close one and try again", self.most, self.most);
            return Err(Problem::new(Code::QuotaExceeded, detail)
                .with_retry_after(Some(std::time::Duration::from_secs(1))));
        }
        *count += 1;
        Ok(StreamSlot { slots: self.clone(), key: key.to_owned() })
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_back() {
        let slots = StreamSlots::new(2);
        let first = slots.take("a").unwrap();
        let _second = slots.take("a").unwrap();
        assert_eq!(slots.take("a").err().map(|problem| problem.code()), Some(Code::QuotaExceeded));
        assert!(slots.take("b").is_ok());
        drop(first);
        assert!(slots.take("a").is_ok());
        assert_eq!(slots.open.lock().unwrap().len(), 1);
    }
}
