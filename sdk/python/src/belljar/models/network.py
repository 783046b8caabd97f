"""Network policies: what they can be made of, and what they would reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple

from .. import _json as read
from .sandboxes import Network


@dataclass(frozen=True)
class NetworkPresetHost:
    """A host of a preset: its name or `*.SUFFIX`, the allowed ports, its purpose, and its risk, if there is one."""

    name: str
    ports: Tuple[int, ...]
    purpose: str
    risk: Optional[str]

    @classmethod
    def from_json(cls, value: Any) -> NetworkPresetHost:
        """Parses a host of a preset."""
        value = read.mapping(value, "the host")
        return cls(
            name=read.text(value, "name"),
            ports=tuple(int(port) for port in value.get("ports") or ()),
            purpose=read.text(value, "purpose"),
            risk=read.optional_text(value, "risk"),
        )


@dataclass(frozen=True)
class NetworkPreset:
    """The hosts that a package manager needs. `tls` is `terminate` or `pass`, unless a policy says otherwise of a host."""

    name: str
    purpose: str
    tls: str
    hosts: Tuple[NetworkPresetHost, ...]

    @classmethod
    def from_json(cls, value: Any) -> NetworkPreset:
        """Parses a preset."""
        value = read.mapping(value, "the preset")
        return cls(
            name=read.text(value, "name"),
            purpose=read.text(value, "purpose"),
            tls=read.text(value, "tls"),
            hosts=tuple(read.list_of(value, "hosts", NetworkPresetHost.from_json)),
        )


@dataclass(frozen=True)
class NetworkOffer:
    """What network policies can be made of.

    `presets_version` grows with each change of a preset's hosts. `most` has the ceilings of the key's policies, those of the
    `server` and of the `key`: a mode, a mapping with `presets` and `allow`, or None.
    """

    presets: Tuple[NetworkPreset, ...]
    presets_version: int
    most: Mapping[str, Optional[Network]]

    @classmethod
    def from_json(cls, value: Any) -> NetworkOffer:
        """Parses an offer."""
        value = read.mapping(value, "the offer")
        return cls(
            presets=tuple(read.list_of(value, "presets", NetworkPreset.from_json)),
            presets_version=read.integer(value, "presets_version"),
            most=read.mapping(value.get("most"), "`most`"),
        )


@dataclass(frozen=True)
class NetworkDecision:
    """The decision about one destination, `HOST:PORT`: the rule or mode that decides, and the reason in one sentence.

    `missing` is the narrowest rule that would allow it, if the policy lacks nothing else.
    """

    host: str
    allowed: bool
    rule: str
    reason: str
    missing: Optional[str]

    @classmethod
    def from_json(cls, value: Any) -> NetworkDecision:
        """Parses a decision."""
        value = read.mapping(value, "the decision")
        return cls(
            host=read.text(value, "host"),
            allowed=value.get("allowed") is True,
            rule=read.text(value, "rule"),
            reason=read.text(value, "reason"),
            missing=read.optional_text(value, "missing"),
        )


@dataclass(frozen=True)
class NetworkProblem:
    """Something invalid in a network policy, with the field and the value, if it is one that is invalid."""

    detail: str
    field: Optional[str]
    value: Optional[str]

    @classmethod
    def from_json(cls, value: Any) -> NetworkProblem:
        """Parses a problem."""
        value = read.mapping(value, "the problem")
        return cls(
            detail=read.text(value, "detail"),
            field=read.optional_text(value, "field"),
            value=read.optional_text(value, "value"),
        )


@dataclass(frozen=True)
class NetworkForecast:
    """What a network policy would reach.

    `network` is the policy in canonical form, without values of secrets. If there are `problems`, there is no policy and no
    decision. `beyond` says why the key could not give the policy to a sandbox, if it reaches more than it may. `hosts` has the
    decision about each destination, in their order.
    """

    network: Optional[Network]
    problems: Tuple[NetworkProblem, ...]
    beyond: Optional[str]
    hosts: Tuple[NetworkDecision, ...]

    @classmethod
    def from_json(cls, value: Any) -> NetworkForecast:
        """Parses a forecast."""
        value = read.mapping(value, "the forecast")
        return cls(
            network=value.get("network"),
            problems=tuple(read.list_of(value, "problems", NetworkProblem.from_json)),
            beyond=read.optional_text(value, "beyond"),
            hosts=tuple(read.list_of(value, "hosts", NetworkDecision.from_json)),
        )
