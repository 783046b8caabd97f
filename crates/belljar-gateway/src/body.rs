//! Bodies that pass through the gateway, and their trailers.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use belljar_http_hop::{Redactor, prepare_trailers};
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::gateway::InFlight;

/// A body that is passed on unchanged, except for its trailers.
pub(crate) struct WithTrailers {
    pub(crate) body: Incoming,
    pub(crate) trailers: Trailers,
    /// The request that it belongs to, in flight until it is gone.
    pub(crate) request: Rc<InFlight>,
}

/// What becomes of the trailers of a message.
pub(crate) enum Trailers {
    /// Passed on unchanged.
    Kept,
    /// Removed.
    Dropped,
    /// Passed on like the headers of a response.
    Redacted(Vec<Rc<Redactor>>),
}

impl Body for WithTrailers {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let Poll::Ready(Some(Ok(frame))) = polled else { return polled };
        let mut trailers = match frame.into_trailers() {
            Ok(trailers) => trailers,
            Err(data) => return Poll::Ready(Some(Ok(data))),
        };
        match &self.trailers {
            Trailers::Kept => {}
            Trailers::Dropped => return Poll::Ready(None),
            Trailers::Redacted(redactors) => {
                prepare_trailers(&mut trailers);
                redactors.iter().for_each(|redactor| redactor.redact(&mut trailers));
            }
        }
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
