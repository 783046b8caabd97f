///Shorthand for `OwnedView<CreateSandboxRequestView<'static>>`.
pub type OwnedCreateSandboxRequestView = ::buffa::view::OwnedView<
    __buffa::view::CreateSandboxRequestView<'static>,
>;
///Shorthand for `OwnedView<CreateSandboxResponseView<'static>>`.
pub type OwnedCreateSandboxResponseView = ::buffa::view::OwnedView<
    __buffa::view::CreateSandboxResponseView<'static>,
>;
///Shorthand for `OwnedView<GetSandboxRequestView<'static>>`.
pub type OwnedGetSandboxRequestView = ::buffa::view::OwnedView<
    __buffa::view::GetSandboxRequestView<'static>,
>;
///Shorthand for `OwnedView<SandboxInfoView<'static>>`.
pub type OwnedSandboxInfoView = ::buffa::view::OwnedView<
    __buffa::view::SandboxInfoView<'static>,
>;
///Shorthand for `OwnedView<ListSandboxesRequestView<'static>>`.
pub type OwnedListSandboxesRequestView = ::buffa::view::OwnedView<
    __buffa::view::ListSandboxesRequestView<'static>,
>;
///Shorthand for `OwnedView<ListSandboxesResponseView<'static>>`.
pub type OwnedListSandboxesResponseView = ::buffa::view::OwnedView<
    __buffa::view::ListSandboxesResponseView<'static>,
>;
///Shorthand for `OwnedView<UpdateSandboxRequestView<'static>>`.
pub type OwnedUpdateSandboxRequestView = ::buffa::view::OwnedView<
    __buffa::view::UpdateSandboxRequestView<'static>,
>;
///Shorthand for `OwnedView<KillSandboxRequestView<'static>>`.
pub type OwnedKillSandboxRequestView = ::buffa::view::OwnedView<
    __buffa::view::KillSandboxRequestView<'static>,
>;
///Shorthand for `OwnedView<KillSandboxResponseView<'static>>`.
pub type OwnedKillSandboxResponseView = ::buffa::view::OwnedView<
    __buffa::view::KillSandboxResponseView<'static>,
>;
///Shorthand for `OwnedView<SetTimeoutRequestView<'static>>`.
pub type OwnedSetTimeoutRequestView = ::buffa::view::OwnedView<
    __buffa::view::SetTimeoutRequestView<'static>,
>;
///Shorthand for `OwnedView<PauseSandboxRequestView<'static>>`.
pub type OwnedPauseSandboxRequestView = ::buffa::view::OwnedView<
    __buffa::view::PauseSandboxRequestView<'static>,
>;
///Shorthand for `OwnedView<ResumeSandboxRequestView<'static>>`.
pub type OwnedResumeSandboxRequestView = ::buffa::view::OwnedView<
    __buffa::view::ResumeSandboxRequestView<'static>,
>;
///Shorthand for `OwnedView<SnapshotSandboxRequestView<'static>>`.
pub type OwnedSnapshotSandboxRequestView = ::buffa::view::OwnedView<
    __buffa::view::SnapshotSandboxRequestView<'static>,
>;
///Shorthand for `OwnedView<TemplateInfoView<'static>>`.
pub type OwnedTemplateInfoView = ::buffa::view::OwnedView<
    __buffa::view::TemplateInfoView<'static>,
>;
///Shorthand for `OwnedView<ForkSandboxRequestView<'static>>`.
pub type OwnedForkSandboxRequestView = ::buffa::view::OwnedView<
    __buffa::view::ForkSandboxRequestView<'static>,
>;
///Shorthand for `OwnedView<ForkSandboxResponseView<'static>>`.
pub type OwnedForkSandboxResponseView = ::buffa::view::OwnedView<
    __buffa::view::ForkSandboxResponseView<'static>,
>;
///Shorthand for `OwnedView<SandboxMetricsRequestView<'static>>`.
pub type OwnedSandboxMetricsRequestView = ::buffa::view::OwnedView<
    __buffa::view::SandboxMetricsRequestView<'static>,
>;
///Shorthand for `OwnedView<SandboxMetricsView<'static>>`.
pub type OwnedSandboxMetricsView = ::buffa::view::OwnedView<
    __buffa::view::SandboxMetricsView<'static>,
>;
///Shorthand for `OwnedView<SandboxLogsRequestView<'static>>`.
pub type OwnedSandboxLogsRequestView = ::buffa::view::OwnedView<
    __buffa::view::SandboxLogsRequestView<'static>,
>;
///Shorthand for `OwnedView<SandboxLogEntryView<'static>>`.
pub type OwnedSandboxLogEntryView = ::buffa::view::OwnedView<
    __buffa::view::SandboxLogEntryView<'static>,
>;
///Shorthand for `OwnedView<IssueTokenRequestView<'static>>`.
pub type OwnedIssueTokenRequestView = ::buffa::view::OwnedView<
    __buffa::view::IssueTokenRequestView<'static>,
>;
///Shorthand for `OwnedView<IssuedTokenView<'static>>`.
pub type OwnedIssuedTokenView = ::buffa::view::OwnedView<
    __buffa::view::IssuedTokenView<'static>,
>;
///Shorthand for `OwnedView<PublishPortRequestView<'static>>`.
pub type OwnedPublishPortRequestView = ::buffa::view::OwnedView<
    __buffa::view::PublishPortRequestView<'static>,
>;
///Shorthand for `OwnedView<PublishedPortView<'static>>`.
pub type OwnedPublishedPortView = ::buffa::view::OwnedView<
    __buffa::view::PublishedPortView<'static>,
>;
///Shorthand for `OwnedView<UnpublishPortRequestView<'static>>`.
pub type OwnedUnpublishPortRequestView = ::buffa::view::OwnedView<
    __buffa::view::UnpublishPortRequestView<'static>,
>;
///Shorthand for `OwnedView<UnpublishPortResponseView<'static>>`.
pub type OwnedUnpublishPortResponseView = ::buffa::view::OwnedView<
    __buffa::view::UnpublishPortResponseView<'static>,
>;
///Shorthand for `OwnedView<ListPublishedPortsRequestView<'static>>`.
pub type OwnedListPublishedPortsRequestView = ::buffa::view::OwnedView<
    __buffa::view::ListPublishedPortsRequestView<'static>,
>;
///Shorthand for `OwnedView<ListPublishedPortsResponseView<'static>>`.
pub type OwnedListPublishedPortsResponseView = ::buffa::view::OwnedView<
    __buffa::view::ListPublishedPortsResponseView<'static>,
>;
///Shorthand for `OwnedView<IssuePortTokenRequestView<'static>>`.
pub type OwnedIssuePortTokenRequestView = ::buffa::view::OwnedView<
    __buffa::view::IssuePortTokenRequestView<'static>,
>;
///Shorthand for `OwnedView<SignFileRequestView<'static>>`.
pub type OwnedSignFileRequestView = ::buffa::view::OwnedView<
    __buffa::view::SignFileRequestView<'static>,
>;
///Shorthand for `OwnedView<SignFileResponseView<'static>>`.
pub type OwnedSignFileResponseView = ::buffa::view::OwnedView<
    __buffa::view::SignFileResponseView<'static>,
>;
impl ::connectrpc::Encodable<CreateSandboxResponse>
for __buffa::view::CreateSandboxResponseView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<CreateSandboxResponse>
for ::buffa::view::OwnedView<__buffa::view::CreateSandboxResponseView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<SandboxInfo> for __buffa::view::SandboxInfoView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<SandboxInfo>
for ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<ListSandboxesResponse>
for __buffa::view::ListSandboxesResponseView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<ListSandboxesResponse>
for ::buffa::view::OwnedView<__buffa::view::ListSandboxesResponseView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<KillSandboxResponse>
for __buffa::view::KillSandboxResponseView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<KillSandboxResponse>
for ::buffa::view::OwnedView<__buffa::view::KillSandboxResponseView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<TemplateInfo> for __buffa::view::TemplateInfoView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<TemplateInfo>
for ::buffa::view::OwnedView<__buffa::view::TemplateInfoView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<ForkSandboxResponse>
for __buffa::view::ForkSandboxResponseView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<ForkSandboxResponse>
for ::buffa::view::OwnedView<__buffa::view::ForkSandboxResponseView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<SandboxMetrics> for __buffa::view::SandboxMetricsView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<SandboxMetrics>
for ::buffa::view::OwnedView<__buffa::view::SandboxMetricsView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<SandboxLogEntry>
for __buffa::view::SandboxLogEntryView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<SandboxLogEntry>
for ::buffa::view::OwnedView<__buffa::view::SandboxLogEntryView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<IssuedToken> for __buffa::view::IssuedTokenView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<IssuedToken>
for ::buffa::view::OwnedView<__buffa::view::IssuedTokenView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<PublishedPort> for __buffa::view::PublishedPortView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<PublishedPort>
for ::buffa::view::OwnedView<__buffa::view::PublishedPortView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<UnpublishPortResponse>
for __buffa::view::UnpublishPortResponseView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<UnpublishPortResponse>
for ::buffa::view::OwnedView<__buffa::view::UnpublishPortResponseView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<ListPublishedPortsResponse>
for __buffa::view::ListPublishedPortsResponseView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<ListPublishedPortsResponse>
for ::buffa::view::OwnedView<__buffa::view::ListPublishedPortsResponseView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
impl ::connectrpc::Encodable<SignFileResponse>
for __buffa::view::SignFileResponseView<'_> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self, codec)
    }
}
impl ::connectrpc::Encodable<SignFileResponse>
for ::buffa::view::OwnedView<__buffa::view::SignFileResponseView<'static>> {
    fn encode(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::buffa::bytes::Bytes, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body(self.reborrow(), codec)
    }
    /// An `OwnedView` still holds the buffer it was decoded from, so
    /// its large fields can be handed to the response body by
    /// reference count instead of copied. The bare view impl above
    /// cannot do this: it has borrows but no buffer to name.
    fn encode_segments(
        &self,
        codec: ::connectrpc::CodecFormat,
    ) -> ::std::result::Result<::connectrpc::EncodedBody, ::connectrpc::ConnectError> {
        ::connectrpc::__codegen::encode_view_body_segments(
            self.reborrow(),
            self.bytes(),
            codec,
        )
    }
}
/// Full service name for this service.
pub const SANDBOXES_SERVICE_NAME: &str = "belljar.v1.Sandboxes";
/// Static [`Spec`](::connectrpc::Spec) for the `Create` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_CREATE_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/Create",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Static [`Spec`](::connectrpc::Spec) for the `Get` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_GET_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/Get",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::NoSideEffects);
/// Static [`Spec`](::connectrpc::Spec) for the `List` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_LIST_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/List",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::NoSideEffects);
/// Static [`Spec`](::connectrpc::Spec) for the `Update` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_UPDATE_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/Update",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Static [`Spec`](::connectrpc::Spec) for the `Kill` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_KILL_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/Kill",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Idempotent);
/// Static [`Spec`](::connectrpc::Spec) for the `SetTimeout` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_SET_TIMEOUT_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/SetTimeout",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Idempotent);
/// Static [`Spec`](::connectrpc::Spec) for the `Pause` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_PAUSE_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/Pause",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Static [`Spec`](::connectrpc::Spec) for the `Resume` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_RESUME_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/Resume",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Idempotent);
/// Static [`Spec`](::connectrpc::Spec) for the `Snapshot` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_SNAPSHOT_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/Snapshot",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Static [`Spec`](::connectrpc::Spec) for the `Fork` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_FORK_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/Fork",
        ::connectrpc::StreamType::ServerStream,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Static [`Spec`](::connectrpc::Spec) for the `Metrics` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_METRICS_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/Metrics",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::NoSideEffects);
/// Static [`Spec`](::connectrpc::Spec) for the `Logs` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_LOGS_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/Logs",
        ::connectrpc::StreamType::ServerStream,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Static [`Spec`](::connectrpc::Spec) for the `IssueToken` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_ISSUE_TOKEN_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/IssueToken",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Static [`Spec`](::connectrpc::Spec) for the `PublishPort` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_PUBLISH_PORT_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/PublishPort",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Idempotent);
/// Static [`Spec`](::connectrpc::Spec) for the `UnpublishPort` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_UNPUBLISH_PORT_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/UnpublishPort",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Static [`Spec`](::connectrpc::Spec) for the `ListPorts` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_LIST_PORTS_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/ListPorts",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Static [`Spec`](::connectrpc::Spec) for the `IssuePortToken` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_ISSUE_PORT_TOKEN_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/IssuePortToken",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Static [`Spec`](::connectrpc::Spec) for the `SignFile` RPC, as seen by the server; the generated client passes it with [`origin`](::connectrpc::Spec::origin) `Client` (compare across sides with [`Spec::same_method`](::connectrpc::Spec::same_method)).
pub const SANDBOXES_SIGN_FILE_SPEC: ::connectrpc::Spec = ::connectrpc::Spec::server(
        "/belljar.v1.Sandboxes/SignFile",
        ::connectrpc::StreamType::Unary,
    )
    .with_idempotency_level(::connectrpc::IdempotencyLevel::Unknown);
/// Sandboxes as a whole: their life, and what is seen of them from outside. What goes on inside is with `Commands`, and
/// with the services of the guest (`Process`, `Filesystem`, `Ports`, `Health`), for which the header `belljar-sandbox`
/// names the sandbox. A sandbox is named by its id, or by its name.
///
/// # Implementing handlers
///
/// Implement methods with plain `async fn`; the returned future satisfies
/// the `Send` bound automatically.
///
/// **Unary and server-streaming requests** arrive as
/// [`ServiceRequest<'_, Req>`](::connectrpc::ServiceRequest): a zero-copy
/// view of the request plus its body, valid for the duration of the call.
/// Fields are read directly (`request.name` is a `&str` into the decoded
/// buffer) and the borrow may be held across `.await` points. Anything
/// that must outlive the call — `tokio::spawn`, channels, server state,
/// or data captured by a returned response stream — takes owned data:
/// call `request.to_owned_message()` (or copy the specific fields)
/// first.
///
/// **Client-streaming and bidi requests** arrive as
/// [`InboundStream<Req>`](::connectrpc::InboundStream) — a
/// `ServiceStream` of [`StreamMessage`](::connectrpc::StreamMessage)s.
/// Each item owns its decoded buffer and is `Send + 'static`, so items
/// can be buffered or moved into spawned tasks; read fields zero-copy
/// through the generated accessor methods (`item.name()`) or `.view()`,
/// convert with `.to_owned_message()`, or yield an item back unchanged —
/// `StreamMessage<M>` implements `Encodable<M>`.
///
/// Request types resolved through `extern_path` (e.g. well-known types
/// from another crate) use the same wrappers; the crate that owns the
/// type must be generated with buffa ≥ 0.9.0 and views enabled so the
/// backing `HasMessageView` impl exists.
///
/// The `impl Encodable<Out>` return bound accepts the owned `Out`, the
/// generated `OutView<'_>` / `OwnedOutView`,
/// [`MaybeBorrowed`](::connectrpc::MaybeBorrowed), or
/// [`PreEncoded`](::connectrpc::PreEncoded) for handlers that encode a
/// non-`'static` view internally and pass the bytes across the handler
/// boundary. View bodies are not emitted for output types mapped via
/// `extern_path` (the impl would be an orphan); return owned for
/// WKT/extern outputs.
///
/// Server-streaming and bidi-streaming methods return
/// `ServiceStream<impl Encodable<Out> + Send + use<Self>>`. The
/// `use<Self>` precise-capturing clause excludes `&self`'s lifetime and
/// the request's lifetime (unary methods use `use<'a, Self>` and may
/// borrow from `&self`), so stream items must be `'static` and cannot
/// borrow from the request. To stream view-encoded data, encode each
/// item inside the stream body and yield
/// [`PreEncoded`](::connectrpc::PreEncoded) — see its `# Streaming
/// example` doc.
#[allow(clippy::type_complexity)]
pub trait Sandboxes: Send + Sync + 'static {
    /// Makes a sandbox. With the header `idempotency-key`, 1 to 255 of `[A-Za-z0-9_.:-]`, the same key and the same
    /// request get the same sandbox.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn create<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, CreateSandboxRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<CreateSandboxResponse> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Says how a sandbox is. It is no use of it: nothing is resumed.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn get<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, GetSandboxRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<SandboxInfo> + Send + use<'a, Self>,
        >,
    > + Send;
    /// One page of the caller's sandboxes.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn list<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, ListSandboxesRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<ListSandboxesResponse> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Changes labels, limits and what happens when the time is over.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn update<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, UpdateSandboxRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<SandboxInfo> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Ends a sandbox, with all that is in it.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn kill<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, KillSandboxRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<KillSandboxResponse> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Sets the time that a sandbox lives from now on.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn set_timeout<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, SetTimeoutRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<SandboxInfo> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Lets a sandbox stand still. Its clock stands too.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn pause<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, PauseSandboxRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<SandboxInfo> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Lets a sandbox go on. One that runs already is left as it is.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn resume<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, ResumeSandboxRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<SandboxInfo> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Keeps a sandbox's files as a template.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn snapshot<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, SnapshotSandboxRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<TemplateInfo> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Copies a sandbox's files into new sandboxes. One message for each, in any order; one that fails does not stop
    /// the others.
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call (until the response stream is returned);
    /// message fields are read directly on it (zero-copy). Data the
    /// returned stream needs must be copied out or converted via
    /// `.to_owned_message()`.
    fn fork(
        &self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, ForkSandboxRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            ::connectrpc::ServiceStream<
                impl ::connectrpc::Encodable<ForkSandboxResponse> + Send + use<Self>,
            >,
        >,
    > + Send;
    /// What a sandbox uses now.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn metrics<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, SandboxMetricsRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<SandboxMetrics> + Send + use<'a, Self>,
        >,
    > + Send;
    /// What happened to a sandbox, the oldest first.
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call (until the response stream is returned);
    /// message fields are read directly on it (zero-copy). Data the
    /// returned stream needs must be copied out or converted via
    /// `.to_owned_message()`.
    fn logs(
        &self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, SandboxLogsRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            ::connectrpc::ServiceStream<
                impl ::connectrpc::Encodable<SandboxLogEntry> + Send + use<Self>,
            >,
        >,
    > + Send;
    /// Makes a token that opens this sandbox only.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn issue_token<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, IssueTokenRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<IssuedToken> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Lets a port be reached from outside.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn publish_port<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, PublishPortRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<PublishedPort> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Takes that back.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn unpublish_port<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, UnpublishPortRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<UnpublishPortResponse> + Send + use<'a, Self>,
        >,
    > + Send;
    /// The published ports, and what programs inside listen on.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn list_ports<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, ListPublishedPortsRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<
                ListPublishedPortsResponse,
            > + Send + use<'a, Self>,
        >,
    > + Send;
    /// Makes a token that opens one published port only.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn issue_port_token<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, IssuePortTokenRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<IssuedToken> + Send + use<'a, Self>,
        >,
    > + Send;
    /// Makes an address with which one file can be read or written without a key.
    ///
    /// `'a` lets the response body borrow from `&self` (e.g. server-resident state).
    ///
    /// `request` is borrowed from the request body and is valid for the
    /// duration of the call; message fields are read directly on it
    /// (zero-copy). The response cannot borrow from `request` — use
    /// `.to_owned_message()` (or copy the specific fields) for anything
    /// returned, stored, or moved into `tokio::spawn`.
    fn sign_file<'a>(
        &'a self,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::ServiceRequest<'_, SignFileRequest>,
    ) -> impl ::std::future::Future<
        Output = ::connectrpc::ServiceResult<
            impl ::connectrpc::Encodable<SignFileResponse> + Send + use<'a, Self>,
        >,
    > + Send;
}
/// Extension trait for registering a service implementation with a Router.
///
/// This trait is automatically implemented for all types that implement the service trait.
/// Prefer [`Router::add_service`](::connectrpc::Router::add_service) for
/// top-down registration; `register` remains available for compatibility
/// and cases where the service-first call shape is more convenient.
///
/// # Example
///
/// ```rust,ignore
/// use std::sync::Arc;
///
/// let service = Arc::new(MyServiceImpl);
/// let router = service.register(Router::new());
/// ```
pub trait SandboxesExt: Sandboxes {
    /// Register this service implementation with a Router.
    ///
    /// Takes ownership of the `Arc<Self>` and returns a new Router with
    /// this service's methods registered.
    fn register(
        self: ::std::sync::Arc<Self>,
        router: ::connectrpc::Router,
    ) -> ::connectrpc::Router;
}
impl<S: Sandboxes> SandboxesExt for S {
    fn register(
        self: ::std::sync::Arc<Self>,
        router: ::connectrpc::Router,
    ) -> ::connectrpc::Router {
        router
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "Create",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::CreateSandboxRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                CreateSandboxRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.create(ctx, sreq)
                                .await?
                                .encode::<CreateSandboxResponse>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_CREATE_SPEC)
            .route_view_idempotent(
                SANDBOXES_SERVICE_NAME,
                "Get",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::GetSandboxRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                GetSandboxRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.get(ctx, sreq).await?.encode::<SandboxInfo>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_GET_SPEC)
            .route_view_idempotent(
                SANDBOXES_SERVICE_NAME,
                "List",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::ListSandboxesRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                ListSandboxesRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.list(ctx, sreq)
                                .await?
                                .encode::<ListSandboxesResponse>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_LIST_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "Update",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::UpdateSandboxRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                UpdateSandboxRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.update(ctx, sreq).await?.encode::<SandboxInfo>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_UPDATE_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "Kill",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::KillSandboxRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                KillSandboxRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.kill(ctx, sreq)
                                .await?
                                .encode::<KillSandboxResponse>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_KILL_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "SetTimeout",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::SetTimeoutRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                SetTimeoutRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.set_timeout(ctx, sreq)
                                .await?
                                .encode::<SandboxInfo>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_SET_TIMEOUT_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "Pause",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::PauseSandboxRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                PauseSandboxRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.pause(ctx, sreq).await?.encode::<SandboxInfo>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_PAUSE_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "Resume",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::ResumeSandboxRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                ResumeSandboxRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.resume(ctx, sreq).await?.encode::<SandboxInfo>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_RESUME_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "Snapshot",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::SnapshotSandboxRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                SnapshotSandboxRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.snapshot(ctx, sreq).await?.encode::<TemplateInfo>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_SNAPSHOT_SPEC)
            .route_view_server_stream::<
                _,
                _,
                ForkSandboxResponse,
            >(
                SANDBOXES_SERVICE_NAME,
                "Fork",
                ::connectrpc::view_streaming_handler_fn({
                    let svc = ::std::sync::Arc::clone(&self);
                    move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::ForkSandboxRequestView<'static>,
                        >|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                ForkSandboxRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.fork(ctx, sreq).await
                        }
                    }
                }),
            )
            .with_spec(SANDBOXES_FORK_SPEC)
            .route_view_idempotent(
                SANDBOXES_SERVICE_NAME,
                "Metrics",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::SandboxMetricsRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                SandboxMetricsRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.metrics(ctx, sreq)
                                .await?
                                .encode::<SandboxMetrics>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_METRICS_SPEC)
            .route_view_server_stream::<
                _,
                _,
                SandboxLogEntry,
            >(
                SANDBOXES_SERVICE_NAME,
                "Logs",
                ::connectrpc::view_streaming_handler_fn({
                    let svc = ::std::sync::Arc::clone(&self);
                    move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::SandboxLogsRequestView<'static>,
                        >|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                SandboxLogsRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.logs(ctx, sreq).await
                        }
                    }
                }),
            )
            .with_spec(SANDBOXES_LOGS_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "IssueToken",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::IssueTokenRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                IssueTokenRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.issue_token(ctx, sreq)
                                .await?
                                .encode::<IssuedToken>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_ISSUE_TOKEN_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "PublishPort",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::PublishPortRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                PublishPortRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.publish_port(ctx, sreq)
                                .await?
                                .encode::<PublishedPort>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_PUBLISH_PORT_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "UnpublishPort",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::UnpublishPortRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                UnpublishPortRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.unpublish_port(ctx, sreq)
                                .await?
                                .encode::<UnpublishPortResponse>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_UNPUBLISH_PORT_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "ListPorts",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::ListPublishedPortsRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                ListPublishedPortsRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.list_ports(ctx, sreq)
                                .await?
                                .encode::<ListPublishedPortsResponse>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_LIST_PORTS_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "IssuePortToken",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::IssuePortTokenRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                IssuePortTokenRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.issue_port_token(ctx, sreq)
                                .await?
                                .encode::<IssuedToken>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_ISSUE_PORT_TOKEN_SPEC)
            .route_view(
                SANDBOXES_SERVICE_NAME,
                "SignFile",
                {
                    let svc = ::std::sync::Arc::clone(&self);
                    ::connectrpc::view_handler_fn(move |
                        ctx,
                        req: ::buffa::view::OwnedView<
                            __buffa::view::SignFileRequestView<'static>,
                        >,
                        format|
                    {
                        let svc = ::std::sync::Arc::clone(&svc);
                        async move {
                            let sreq = ::connectrpc::ServiceRequest::<
                                SignFileRequest,
                            >::from_parts(req.reborrow(), req.bytes());
                            svc.sign_file(ctx, sreq)
                                .await?
                                .encode::<SignFileResponse>(format)
                        }
                    })
                },
            )
            .with_spec(SANDBOXES_SIGN_FILE_SPEC)
    }
}
/// Type-inference marker used by [`Router::add_service`](::connectrpc::Router::add_service).
#[doc(hidden)]
pub struct SandboxesRegisterMarker;
impl<S: Sandboxes> ::connectrpc::ServiceRegister<SandboxesRegisterMarker>
for ::std::sync::Arc<S> {
    fn register_service(self, router: ::connectrpc::Router) -> ::connectrpc::Router {
        <S as SandboxesExt>::register(self, router)
    }
}
/// Monomorphic dispatcher for `Sandboxes`.
///
/// Unlike `.register(Router)` which type-erases each method into an `Arc<dyn ErasedHandler>` stored in a `HashMap`, this struct dispatches via a compile-time `match` on method name: no vtable, no hash lookup.
///
/// # Example
///
/// ```rust,ignore
/// use connectrpc::ConnectRpcService;
///
/// let server = SandboxesServer::new(MyImpl);
/// let service = ConnectRpcService::new(server);
/// // hand `service` to axum/hyper as a fallback_service
/// ```
pub struct SandboxesServer<T> {
    inner: ::std::sync::Arc<T>,
}
impl<T: Sandboxes> SandboxesServer<T> {
    /// Wrap a service implementation in a monomorphic dispatcher.
    pub fn new(service: T) -> Self {
        Self {
            inner: ::std::sync::Arc::new(service),
        }
    }
    /// Wrap an already-`Arc`'d service implementation.
    pub fn from_arc(inner: ::std::sync::Arc<T>) -> Self {
        Self { inner }
    }
}
impl<T> Clone for SandboxesServer<T> {
    fn clone(&self) -> Self {
        Self {
            inner: ::std::sync::Arc::clone(&self.inner),
        }
    }
}
impl<T: Sandboxes> ::connectrpc::Dispatcher for SandboxesServer<T> {
    #[inline]
    fn lookup(
        &self,
        path: &str,
    ) -> Option<::connectrpc::dispatcher::codegen::MethodDescriptor> {
        let method = path.strip_prefix("belljar.v1.Sandboxes/")?;
        match method {
            "Create" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_CREATE_SPEC),
                )
            }
            "Get" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(true)
                        .with_spec(SANDBOXES_GET_SPEC),
                )
            }
            "List" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(true)
                        .with_spec(SANDBOXES_LIST_SPEC),
                )
            }
            "Update" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_UPDATE_SPEC),
                )
            }
            "Kill" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_KILL_SPEC),
                )
            }
            "SetTimeout" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_SET_TIMEOUT_SPEC),
                )
            }
            "Pause" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_PAUSE_SPEC),
                )
            }
            "Resume" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_RESUME_SPEC),
                )
            }
            "Snapshot" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_SNAPSHOT_SPEC),
                )
            }
            "Fork" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::server_streaming()
                        .with_spec(SANDBOXES_FORK_SPEC),
                )
            }
            "Metrics" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(true)
                        .with_spec(SANDBOXES_METRICS_SPEC),
                )
            }
            "Logs" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::server_streaming()
                        .with_spec(SANDBOXES_LOGS_SPEC),
                )
            }
            "IssueToken" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_ISSUE_TOKEN_SPEC),
                )
            }
            "PublishPort" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_PUBLISH_PORT_SPEC),
                )
            }
            "UnpublishPort" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_UNPUBLISH_PORT_SPEC),
                )
            }
            "ListPorts" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_LIST_PORTS_SPEC),
                )
            }
            "IssuePortToken" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_ISSUE_PORT_TOKEN_SPEC),
                )
            }
            "SignFile" => {
                Some(
                    ::connectrpc::dispatcher::codegen::MethodDescriptor::unary(false)
                        .with_spec(SANDBOXES_SIGN_FILE_SPEC),
                )
            }
            _ => None,
        }
    }
    fn call_unary(
        &self,
        path: &str,
        ctx: ::connectrpc::RequestContext,
        request: ::connectrpc::Payload,
        format: ::connectrpc::CodecFormat,
    ) -> ::connectrpc::dispatcher::codegen::UnaryResult {
        let Some(method) = path.strip_prefix("belljar.v1.Sandboxes/") else {
            return ::connectrpc::dispatcher::codegen::unimplemented_unary(path);
        };
        let _ = (&ctx, &request, &format);
        match method {
            "Create" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        CreateSandboxRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::CreateSandboxRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        CreateSandboxRequest,
                    >::from_parts(&req, &body);
                    svc.create(ctx, req).await?.encode::<CreateSandboxResponse>(format)
                })
            }
            "Get" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        GetSandboxRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::GetSandboxRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        GetSandboxRequest,
                    >::from_parts(&req, &body);
                    svc.get(ctx, req).await?.encode::<SandboxInfo>(format)
                })
            }
            "List" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        ListSandboxesRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::ListSandboxesRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        ListSandboxesRequest,
                    >::from_parts(&req, &body);
                    svc.list(ctx, req).await?.encode::<ListSandboxesResponse>(format)
                })
            }
            "Update" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        UpdateSandboxRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::UpdateSandboxRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        UpdateSandboxRequest,
                    >::from_parts(&req, &body);
                    svc.update(ctx, req).await?.encode::<SandboxInfo>(format)
                })
            }
            "Kill" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        KillSandboxRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::KillSandboxRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        KillSandboxRequest,
                    >::from_parts(&req, &body);
                    svc.kill(ctx, req).await?.encode::<KillSandboxResponse>(format)
                })
            }
            "SetTimeout" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        SetTimeoutRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::SetTimeoutRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        SetTimeoutRequest,
                    >::from_parts(&req, &body);
                    svc.set_timeout(ctx, req).await?.encode::<SandboxInfo>(format)
                })
            }
            "Pause" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        PauseSandboxRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::PauseSandboxRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        PauseSandboxRequest,
                    >::from_parts(&req, &body);
                    svc.pause(ctx, req).await?.encode::<SandboxInfo>(format)
                })
            }
            "Resume" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        ResumeSandboxRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::ResumeSandboxRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        ResumeSandboxRequest,
                    >::from_parts(&req, &body);
                    svc.resume(ctx, req).await?.encode::<SandboxInfo>(format)
                })
            }
            "Snapshot" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        SnapshotSandboxRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::SnapshotSandboxRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        SnapshotSandboxRequest,
                    >::from_parts(&req, &body);
                    svc.snapshot(ctx, req).await?.encode::<TemplateInfo>(format)
                })
            }
            "Metrics" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        SandboxMetricsRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::SandboxMetricsRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        SandboxMetricsRequest,
                    >::from_parts(&req, &body);
                    svc.metrics(ctx, req).await?.encode::<SandboxMetrics>(format)
                })
            }
            "IssueToken" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        IssueTokenRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::IssueTokenRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        IssueTokenRequest,
                    >::from_parts(&req, &body);
                    svc.issue_token(ctx, req).await?.encode::<IssuedToken>(format)
                })
            }
            "PublishPort" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        PublishPortRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::PublishPortRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        PublishPortRequest,
                    >::from_parts(&req, &body);
                    svc.publish_port(ctx, req).await?.encode::<PublishedPort>(format)
                })
            }
            "UnpublishPort" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        UnpublishPortRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::UnpublishPortRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        UnpublishPortRequest,
                    >::from_parts(&req, &body);
                    svc.unpublish_port(ctx, req)
                        .await?
                        .encode::<UnpublishPortResponse>(format)
                })
            }
            "ListPorts" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        ListPublishedPortsRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::ListPublishedPortsRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        ListPublishedPortsRequest,
                    >::from_parts(&req, &body);
                    svc.list_ports(ctx, req)
                        .await?
                        .encode::<ListPublishedPortsResponse>(format)
                })
            }
            "IssuePortToken" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        IssuePortTokenRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::IssuePortTokenRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        IssuePortTokenRequest,
                    >::from_parts(&req, &body);
                    svc.issue_port_token(ctx, req).await?.encode::<IssuedToken>(format)
                })
            }
            "SignFile" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        SignFileRequest,
                    >(request.encoded()?, format)?;
                    let req: __buffa::view::SignFileRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        SignFileRequest,
                    >::from_parts(&req, &body);
                    svc.sign_file(ctx, req).await?.encode::<SignFileResponse>(format)
                })
            }
            _ => ::connectrpc::dispatcher::codegen::unimplemented_unary(path),
        }
    }
    fn call_server_streaming(
        &self,
        path: &str,
        ctx: ::connectrpc::RequestContext,
        request: ::buffa::bytes::Bytes,
        format: ::connectrpc::CodecFormat,
    ) -> ::connectrpc::dispatcher::codegen::StreamingResult {
        let Some(method) = path.strip_prefix("belljar.v1.Sandboxes/") else {
            return ::connectrpc::dispatcher::codegen::unimplemented_streaming(path);
        };
        let _ = (&ctx, &request, &format);
        match method {
            "Fork" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        ForkSandboxRequest,
                    >(request, format)?;
                    let req: __buffa::view::ForkSandboxRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        ForkSandboxRequest,
                    >::from_parts(&req, &body);
                    let resp = svc.fork(ctx, req).await?;
                    Ok(
                        resp
                            .map_body(|s| ::connectrpc::dispatcher::codegen::encode_response_stream::<
                                ForkSandboxResponse,
                                _,
                                _,
                            >(s, format)),
                    )
                })
            }
            "Logs" => {
                let svc = ::std::sync::Arc::clone(&self.inner);
                Box::pin(async move {
                    let body = ::connectrpc::dispatcher::codegen::request_proto_bytes::<
                        SandboxLogsRequest,
                    >(request, format)?;
                    let req: __buffa::view::SandboxLogsRequestView<'_> = ::connectrpc::dispatcher::codegen::decode_borrowed_request_view(
                        &body,
                        ctx.decode_options(),
                    )?;
                    let req = ::connectrpc::ServiceRequest::<
                        SandboxLogsRequest,
                    >::from_parts(&req, &body);
                    let resp = svc.logs(ctx, req).await?;
                    Ok(
                        resp
                            .map_body(|s| ::connectrpc::dispatcher::codegen::encode_response_stream::<
                                SandboxLogEntry,
                                _,
                                _,
                            >(s, format)),
                    )
                })
            }
            _ => ::connectrpc::dispatcher::codegen::unimplemented_streaming(path),
        }
    }
    fn call_client_streaming(
        &self,
        path: &str,
        ctx: ::connectrpc::RequestContext,
        requests: ::connectrpc::dispatcher::codegen::RequestStream,
        format: ::connectrpc::CodecFormat,
    ) -> ::connectrpc::dispatcher::codegen::UnaryResult {
        let Some(method) = path.strip_prefix("belljar.v1.Sandboxes/") else {
            return ::connectrpc::dispatcher::codegen::unimplemented_unary(path);
        };
        let _ = (&ctx, &requests, &format);
        match method {
            _ => ::connectrpc::dispatcher::codegen::unimplemented_unary(path),
        }
    }
    fn call_bidi_streaming(
        &self,
        path: &str,
        ctx: ::connectrpc::RequestContext,
        requests: ::connectrpc::dispatcher::codegen::RequestStream,
        format: ::connectrpc::CodecFormat,
    ) -> ::connectrpc::dispatcher::codegen::StreamingResult {
        let Some(method) = path.strip_prefix("belljar.v1.Sandboxes/") else {
            return ::connectrpc::dispatcher::codegen::unimplemented_streaming(path);
        };
        let _ = (&ctx, &requests, &format);
        match method {
            _ => ::connectrpc::dispatcher::codegen::unimplemented_streaming(path),
        }
    }
}
/// Client for this service.
///
/// Generic over `T: ClientTransport`. For **gRPC** (HTTP/2), use
/// `Http2Connection` — it has honest `poll_ready` and composes with
/// `tower::balance` for multi-connection load balancing. For **Connect
/// over HTTP/1.1** (or unknown protocol), use `HttpClient`.
///
/// # Example (gRPC / HTTP/2)
///
/// ```rust,ignore
/// use connectrpc::client::{Http2Connection, ClientConfig};
/// use connectrpc::Protocol;
///
/// let uri: http::Uri = "http://localhost:8080".parse()?;
/// let conn = Http2Connection::connect_plaintext(uri.clone()).await?.shared(1024);
/// let config = ClientConfig::new(uri).with_protocol(Protocol::Grpc);
///
/// let client = SandboxesClient::new(conn, config);
/// let response = client.create(request).await?;
/// ```
///
/// # Example (Connect / HTTP/1.1 or ALPN)
///
/// ```rust,ignore
/// use connectrpc::client::{HttpClient, ClientConfig};
///
/// let http = HttpClient::plaintext();  // cleartext http:// only
/// let config = ClientConfig::new("http://localhost:8080".parse()?);
///
/// let client = SandboxesClient::new(http, config);
/// let response = client.create(request).await?;
/// ```
///
/// # Working with the response
///
/// Unary calls return [`UnaryResponse<OwnedView<FooView>>`](::connectrpc::client::UnaryResponse).
/// [`view()`](::connectrpc::client::UnaryResponse::view) borrows the response
/// message, so field access is zero-copy:
///
/// ```rust,ignore
/// let resp = client.create(request).await?;
/// let name: &str = resp.view().name;  // borrow into the response buffer
/// ```
///
/// If you need the owned struct (e.g. to store or pass by value), use
/// [`into_owned()`](::connectrpc::client::UnaryResponse::into_owned):
///
/// ```rust,ignore
/// let owned = client.create(request).await?.into_owned();
/// ```
///
/// [`into_view()`](::connectrpc::client::UnaryResponse::into_view) keeps the
/// zero-copy decoded body (an `OwnedView`) without copying; field access on it
/// goes through `.reborrow()`. Streaming responses yield one
/// [`StreamMessage`](::connectrpc::StreamMessage) per received message from
/// `.message().await` — read fields zero-copy through the generated accessor
/// methods (`msg.name()`) or `.view()`, or convert with `.to_owned_message()`.
#[derive(Clone)]
pub struct SandboxesClient<T> {
    transport: T,
    config: ::connectrpc::client::ClientConfig,
}
impl<T> SandboxesClient<T>
where
    T: ::connectrpc::client::ClientTransport,
    <T::ResponseBody as ::connectrpc::http_body::Body>::Error: ::std::fmt::Display,
{
    /// Create a new client with the given transport and configuration.
    pub fn new(transport: T, config: ::connectrpc::client::ClientConfig) -> Self {
        Self { transport, config }
    }
    /// Get the client configuration.
    pub fn config(&self) -> &::connectrpc::client::ClientConfig {
        &self.config
    }
    /// Get a mutable reference to the client configuration.
    pub fn config_mut(&mut self) -> &mut ::connectrpc::client::ClientConfig {
        &mut self.config
    }
    /// Call the Create RPC. Sends a request to /belljar.v1.Sandboxes/Create.
    pub async fn create(
        &self,
        request: CreateSandboxRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::CreateSandboxResponseView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.create_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the Create RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn create_with_options(
        &self,
        request: CreateSandboxRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::CreateSandboxResponseView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_CREATE_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the Get RPC. Sends a request to /belljar.v1.Sandboxes/Get.
    pub async fn get(
        &self,
        request: GetSandboxRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.get_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the Get RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn get_with_options(
        &self,
        request: GetSandboxRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_GET_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the List RPC. Sends a request to /belljar.v1.Sandboxes/List.
    pub async fn list(
        &self,
        request: ListSandboxesRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::ListSandboxesResponseView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.list_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the List RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn list_with_options(
        &self,
        request: ListSandboxesRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::ListSandboxesResponseView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_LIST_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the Update RPC. Sends a request to /belljar.v1.Sandboxes/Update.
    pub async fn update(
        &self,
        request: UpdateSandboxRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.update_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the Update RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn update_with_options(
        &self,
        request: UpdateSandboxRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_UPDATE_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the Kill RPC. Sends a request to /belljar.v1.Sandboxes/Kill.
    pub async fn kill(
        &self,
        request: KillSandboxRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::KillSandboxResponseView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.kill_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the Kill RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn kill_with_options(
        &self,
        request: KillSandboxRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::KillSandboxResponseView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_KILL_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the SetTimeout RPC. Sends a request to /belljar.v1.Sandboxes/SetTimeout.
    pub async fn set_timeout(
        &self,
        request: SetTimeoutRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.set_timeout_with_options(
                request,
                ::connectrpc::client::CallOptions::default(),
            )
            .await
    }
    /// Call the SetTimeout RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn set_timeout_with_options(
        &self,
        request: SetTimeoutRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_SET_TIMEOUT_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the Pause RPC. Sends a request to /belljar.v1.Sandboxes/Pause.
    pub async fn pause(
        &self,
        request: PauseSandboxRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.pause_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the Pause RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn pause_with_options(
        &self,
        request: PauseSandboxRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_PAUSE_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the Resume RPC. Sends a request to /belljar.v1.Sandboxes/Resume.
    pub async fn resume(
        &self,
        request: ResumeSandboxRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.resume_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the Resume RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn resume_with_options(
        &self,
        request: ResumeSandboxRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_RESUME_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the Snapshot RPC. Sends a request to /belljar.v1.Sandboxes/Snapshot.
    pub async fn snapshot(
        &self,
        request: SnapshotSandboxRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::TemplateInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.snapshot_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the Snapshot RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn snapshot_with_options(
        &self,
        request: SnapshotSandboxRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::TemplateInfoView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_SNAPSHOT_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the Fork RPC. Sends a request to /belljar.v1.Sandboxes/Fork.
    pub async fn fork(
        &self,
        request: ForkSandboxRequest,
    ) -> Result<
        ::connectrpc::client::ServerStream<
            T::ResponseBody,
            __buffa::view::ForkSandboxResponseView<'static>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.fork_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the Fork RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn fork_with_options(
        &self,
        request: ForkSandboxRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::ServerStream<
            T::ResponseBody,
            __buffa::view::ForkSandboxResponseView<'static>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_server_stream(
                &self.transport,
                &self.config,
                SANDBOXES_FORK_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the Metrics RPC. Sends a request to /belljar.v1.Sandboxes/Metrics.
    pub async fn metrics(
        &self,
        request: SandboxMetricsRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxMetricsView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.metrics_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the Metrics RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn metrics_with_options(
        &self,
        request: SandboxMetricsRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SandboxMetricsView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_METRICS_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the Logs RPC. Sends a request to /belljar.v1.Sandboxes/Logs.
    pub async fn logs(
        &self,
        request: SandboxLogsRequest,
    ) -> Result<
        ::connectrpc::client::ServerStream<
            T::ResponseBody,
            __buffa::view::SandboxLogEntryView<'static>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.logs_with_options(request, ::connectrpc::client::CallOptions::default())
            .await
    }
    /// Call the Logs RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn logs_with_options(
        &self,
        request: SandboxLogsRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::ServerStream<
            T::ResponseBody,
            __buffa::view::SandboxLogEntryView<'static>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_server_stream(
                &self.transport,
                &self.config,
                SANDBOXES_LOGS_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the IssueToken RPC. Sends a request to /belljar.v1.Sandboxes/IssueToken.
    pub async fn issue_token(
        &self,
        request: IssueTokenRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::IssuedTokenView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.issue_token_with_options(
                request,
                ::connectrpc::client::CallOptions::default(),
            )
            .await
    }
    /// Call the IssueToken RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn issue_token_with_options(
        &self,
        request: IssueTokenRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::IssuedTokenView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_ISSUE_TOKEN_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the PublishPort RPC. Sends a request to /belljar.v1.Sandboxes/PublishPort.
    pub async fn publish_port(
        &self,
        request: PublishPortRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::PublishedPortView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.publish_port_with_options(
                request,
                ::connectrpc::client::CallOptions::default(),
            )
            .await
    }
    /// Call the PublishPort RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn publish_port_with_options(
        &self,
        request: PublishPortRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::PublishedPortView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_PUBLISH_PORT_SPEC
                    .with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the UnpublishPort RPC. Sends a request to /belljar.v1.Sandboxes/UnpublishPort.
    pub async fn unpublish_port(
        &self,
        request: UnpublishPortRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::UnpublishPortResponseView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.unpublish_port_with_options(
                request,
                ::connectrpc::client::CallOptions::default(),
            )
            .await
    }
    /// Call the UnpublishPort RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn unpublish_port_with_options(
        &self,
        request: UnpublishPortRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::UnpublishPortResponseView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_UNPUBLISH_PORT_SPEC
                    .with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the ListPorts RPC. Sends a request to /belljar.v1.Sandboxes/ListPorts.
    pub async fn list_ports(
        &self,
        request: ListPublishedPortsRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<
                __buffa::view::ListPublishedPortsResponseView<'static>,
            >,
        >,
        ::connectrpc::ConnectError,
    > {
        self.list_ports_with_options(
                request,
                ::connectrpc::client::CallOptions::default(),
            )
            .await
    }
    /// Call the ListPorts RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn list_ports_with_options(
        &self,
        request: ListPublishedPortsRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<
                __buffa::view::ListPublishedPortsResponseView<'static>,
            >,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_LIST_PORTS_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the IssuePortToken RPC. Sends a request to /belljar.v1.Sandboxes/IssuePortToken.
    pub async fn issue_port_token(
        &self,
        request: IssuePortTokenRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::IssuedTokenView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.issue_port_token_with_options(
                request,
                ::connectrpc::client::CallOptions::default(),
            )
            .await
    }
    /// Call the IssuePortToken RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn issue_port_token_with_options(
        &self,
        request: IssuePortTokenRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::IssuedTokenView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_ISSUE_PORT_TOKEN_SPEC
                    .with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
    /// Call the SignFile RPC. Sends a request to /belljar.v1.Sandboxes/SignFile.
    pub async fn sign_file(
        &self,
        request: SignFileRequest,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SignFileResponseView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        self.sign_file_with_options(
                request,
                ::connectrpc::client::CallOptions::default(),
            )
            .await
    }
    /// Call the SignFile RPC with explicit per-call options. Options override [`ClientConfig`](::connectrpc::client::ClientConfig) defaults.
    pub async fn sign_file_with_options(
        &self,
        request: SignFileRequest,
        options: ::connectrpc::client::CallOptions,
    ) -> Result<
        ::connectrpc::client::UnaryResponse<
            ::buffa::view::OwnedView<__buffa::view::SignFileResponseView<'static>>,
        >,
        ::connectrpc::ConnectError,
    > {
        ::connectrpc::client::call_unary(
                &self.transport,
                &self.config,
                SANDBOXES_SIGN_FILE_SPEC.with_origin(::connectrpc::SpecOrigin::Client),
                request,
                options,
            )
            .await
    }
}
