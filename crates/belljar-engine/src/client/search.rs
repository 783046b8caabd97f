//! Searching files inside the sandbox.

use belljar_proto::{ServerStream, v1};

use super::{GuestClient, GuestError, Result};

type SearchStream = ServerStream<v1::__buffa::view::SearchMatchView<'static>>;

/// Default number of matches of a guest.
const DEFAULT_RESULTS: u32 = 1000;

/// Maximum length of a line in a match, in bytes.
const MAX_LINE_BYTES: usize = 1024;

/// Stream of matches.
pub struct Search {
    stream: Box<SearchStream>,
    left: u32,
    summary: Option<v1::SearchSummary>,
}

impl GuestClient {
    /// Searches a tree or a file.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn search(&self, request: v1::SearchRequest) -> Result<Search> {
        let left = if request.max_results == 0 { DEFAULT_RESULTS } else { request.max_results };
        let stream = self.files(None).search(request).await?;
        Ok(Search { stream: Box::new(stream), left, summary: None })
    }
}

impl Search {
    /// Returns the next match; `None` after the last.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<v1::SearchMatch>> {
        loop {
            let Some(message) = self.stream.message::<v1::SearchMatch>().await? else {
                return match (self.stream.error(), &self.summary) {
                    (Some(error), _) => Err(error.clone().into()),
                    (None, Some(_)) => Ok(None),
                    (None, None) => Err(GuestError::Protocol { what: "a search ended without its summary" }),
                };
            };
            if self.summary.is_some() {
                return Err(GuestError::Protocol { what: "a search continued after its summary" });
            }
            let mut message = message.to_owned_message();
            if message.summary.is_set() {
                self.summary = message.summary.take();
                continue;
            }
            if message.line.len() > MAX_LINE_BYTES {
                return Err(GuestError::Protocol { what: "a match has an overlong line" });
            }
            let left = self.left.checked_sub(1);
            self.left = left.ok_or(GuestError::Protocol { what: "more matches were sent than requested" })?;
            return Ok(Some(message));
        }
    }

    /// Returns the guest's summary of the search; `None` before the end.
    #[must_use]
    pub fn summary(&self) -> Option<&v1::SearchSummary> {
        self.summary.as_ref()
    }
}

impl std::fmt::Debug for Search {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Search").field("summary", &self.summary).finish_non_exhaustive()
    }
}
