//! Messages of the protocol. A guest can send any of them, valid or not.

use belljar_proto::v1;
use buffa::{Message, MessageView};

use crate::data::Input;

/// Checks a message: a byte selects the type.
pub(crate) fn message(data: &[u8]) {
    let mut input = Input(data);
    macro_rules! one_of {
        ($($type:ident / $view:ident),* $(,)?) => {{
            const CHECKS: &[fn(&[u8])] = &[$(|bytes| {
                let view = v1::__buffa::view::$view::decode_view(bytes).ok().and_then(|view| view.to_owned_message().ok());
                check::<v1::$type>(bytes, view);
            }),*];
            CHECKS[usize::from(input.byte()) % CHECKS.len()](input.0);
        }};
    }
    one_of!(
        ProcessEvent / ProcessEventView,
        ReadResponse / ReadResponseView,
        WriteResponse / WriteResponseView,
        StatResponse / StatResponseView,
        ListResponse / ListResponseView,
        MakeDirResponse / MakeDirResponseView,
        MoveResponse / MoveResponseView,
        RemoveResponse / RemoveResponseView,
        WatchEvent / WatchEventView,
        InputResponse / InputResponseView,
        SignalResponse / SignalResponseView,
        ResizeResponse / ResizeResponseView,
        ListProcessesResponse / ListProcessesResponseView,
        TunnelResponse / TunnelResponseView,
        ListPortsResponse / ListPortsResponseView,
        CheckResponse / CheckResponseView,
        MetricsResponse / MetricsResponseView,
        SetDeadlineResponse / SetDeadlineResponseView,
        StartRequest / StartRequestView,
        AttachRequest / AttachRequestView,
        InputRequest / InputRequestView,
        SignalRequest / SignalRequestView,
        ResizeRequest / ResizeRequestView,
        ReadRequest / ReadRequestView,
        WriteRequest / WriteRequestView,
        StatRequest / StatRequestView,
        ListRequest / ListRequestView,
        MakeDirRequest / MakeDirRequestView,
        MoveRequest / MoveRequestView,
        RemoveRequest / RemoveRequestView,
        WatchRequest / WatchRequestView,
        TunnelRequest / TunnelRequestView,
        SetDeadlineRequest / SetDeadlineRequestView,
        PackRequest / PackRequestView,
        PackResponse / PackResponseView,
        UnpackRequest / UnpackRequestView,
        UnpackResponse / UnpackResponseView,
        SearchRequest / SearchRequestView,
        SearchMatch / SearchMatchView,
        SetModeRequest / SetModeRequestView,
        SetModeResponse / SetModeResponseView,
        SessionOpen / SessionOpenView,
        SessionOpened / SessionOpenedView,
        SessionRun / SessionRunView,
        SessionClose / SessionCloseView,
        SessionClosed / SessionClosedView,
        ListSessionsResponse / ListSessionsResponseView,
        CodeEvent / CodeEventView,
        ContextInfo / ContextInfoView,
        ListContextsResponse / ListContextsResponseView,
        InterruptResponse / InterruptResponseView,
        RemoveContextResponse / RemoveContextResponseView,
        AnswerResponse / AnswerResponseView,
        CreateContextRequest / CreateContextRequestView,
        ContextRequest / ContextRequestView,
        ExecuteCodeRequest / ExecuteCodeRequestView,
        AnswerRequest / AnswerRequestView,
    );
}

/// Checks that both decoders agree, and that a decoded message survives a round trip.
fn check<M: Message + std::fmt::Debug>(bytes: &[u8], view: Option<M>) {
    let owned = M::decode_from_slice(bytes).ok();
    let Some(owned) = owned else { return };
    let encoded = owned.encode_to_vec();
    let again = M::decode_from_slice(&encoded).expect("an encoded message can be decoded");
    assert_eq!(again, owned);
    assert_eq!(again.encode_to_vec(), encoded);
    // Known fields are never encoded longer than they were received; unknown ones may be kept or dropped.
    assert!(encoded.len() <= bytes.len().saturating_mul(2) + 16, "{} from {}", encoded.len(), bytes.len());
    if let Some(view) = view {
        assert_eq!(view.encode_to_vec(), encoded, "the two decoders differ");
    }
}
