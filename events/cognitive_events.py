"""The cognitive event types: what each says, where it travels, and who says it to whom.

The models type what is known and let everything else through, and require nothing: a module may say less, or more.
`standard()` is a taxonomy of all of them, to which an application adds its own kinds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, Strict

from events.taxonomy import Kind, Taxonomy
from events.types import EventType

CONSOLIDATION_DUE: Final = "CONSOLIDATION_DUE"
"""The type of a `ConsolidationDue`: not of the wiring map, but what its consolidation has to be told by."""


class TopicInfo(NamedTuple):
    """A topic of the wiring map."""

    name: str
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    use: str


TOPICS: Final = (
    TopicInfo(
        "workspace", ("global workspace",), ("arbiter", "recall", "learning"), "Share salient facts of working memory"
    ),
    TopicInfo("hippo", ("writer",), ("hippocampus", "consolidation"), "Encode episodic memory"),
    TopicInfo("affect", ("affect",), ("arbiter", "learning"), "Decide with feeling: valence, arousal, risk"),
    TopicInfo("cortex", ("cortex",), ("arbiter",), "Predicted needs and candidates for action"),
    TopicInfo("actions", ("arbiter", "actuators"), ("actuators", "learning"), "The motor loop: decided, then executed"),
    TopicInfo("prospective", ("prospective",), ("arbiter", "workspace"), "Reminders and plans that fall due"),
    TopicInfo("temporal", ("writer", "temporal"), ("recall", "prospective"), "Candidates and patterns in time"),
    TopicInfo("metacog", ("metacognition", "attention"), ("learning", "attention"), "What the mind notes of itself"),
)
"""The seven topics of the wiring map, and one for metacognition."""

_Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Unit = Annotated[_Number, Field(ge=0, le=1)]
Signed = Annotated[_Number, Field(ge=-1, le=1)]
Seconds = Annotated[_Number, Field(ge=0)]
Count = Annotated[int, Strict(), Field(ge=0)]
Text = Annotated[str, Strict()]
Tags = tuple[Text, ...]
Filter = dict[str, Any] | list[dict[str, Any]]
"""A filter as plain data, as `filters.filter_from` reads it."""


class CognitivePayload(BaseModel):
    """What all payloads have in common: fields that are not known here are kept."""

    model_config = ConfigDict(extra="allow", frozen=True)


class AttentionRequest(CognitivePayload):
    """A module asks that certain events be attended to for a while.

    Which: those that match `filter`, or carry `key` or `tags`. `weight` is how relevant they are meanwhile.
    """

    filter: Filter | None = None
    key: Text | None = None
    tags: Tags | None = None
    weight: Unit | None = None
    duration_s: Seconds | None = None
    reason: Text | None = None


class FocusShiftRequest(AttentionRequest):
    """The focus moves: what it names replaces what was in focus before, and naming nothing ends it."""


class CognitiveLoadAlert(CognitivePayload):
    """The load of a group crossed a bound, upwards or downwards."""

    group: Text | None = None
    level: Text | None = None
    before: Text | None = None
    load: _Number | None = None
    inflight: Count | None = None
    max_inflight: Count | None = None
    backlog: Count | None = None
    latency_s: Seconds | None = None


class WorkingMemoryUpdate(CognitivePayload):
    """An item enters working memory, is refreshed, or leaves it."""

    op: Literal["add", "refresh", "remove", "clear"] | None = None
    item_id: Text | None = None
    summary: Text | None = None
    strength: Unit | None = None
    memory_id: Text | None = None
    tags: Tags | None = None


class WorkspaceBroadcast(CognitivePayload):
    """Salient facts, shared with whoever listens."""

    summary: Text | None = None
    message: Text | None = None
    items: list[Any] | None = None
    salience: Unit | None = None


class GlobalWorkspaceBroadcast(WorkspaceBroadcast):
    """What won the competition for the global workspace, and from where it came."""

    source: Text | None = None
    event_id: Text | None = None


class HippoEncode(CognitivePayload):
    """Something is to be remembered. Without `text`, what can be searched is made of the rest."""

    text: Text | None = None
    summary: Text | None = None
    ts: datetime | None = None
    tz: Text | None = None
    tags: Tags | None = None
    key: Text | None = None
    valence: Signed | None = None
    arousal: Unit | None = None
    salience: Unit | None = None


class WriteAccepted(CognitivePayload):
    """A memory is stored; `event_id` is that of the event which asked for it."""

    memory_id: Text | None = None
    event_id: Text | None = None
    ts: datetime | None = None
    tags: Tags | None = None


class ConsolidationDue(CognitivePayload):
    """Memories wait to be consolidated: those after `after` through `through`, by their sequence in the store."""

    reason: Literal["count", "age", "idle"] | None = None
    count: Count | None = None
    after: Count | None = None
    through: Count | None = None


class AffectAnnotated(CognitivePayload):
    """How an event feels: pleasant or not, stirring or not, and how sure that is."""

    event_id: Text | None = None
    valence: Signed | None = None
    arousal: Unit | None = None
    tags: Tags | None = None
    confidence: Unit | None = None


class CortexPrediction(CognitivePayload):
    """What the predictive model expects or needs, and what could be done about it."""

    need: Text | None = None
    candidates: list[Any] | None = None
    confidence: Unit | None = None
    horizon_s: Seconds | None = None


class ActionDecision(CognitivePayload):
    """The arbiter chose an action."""

    action_id: Text | None = None
    action: Text | None = None
    arguments: dict[str, Any] | None = None
    reason: Text | None = None
    risk: Unit | None = None
    confidence: Unit | None = None


class ActionExecuted(CognitivePayload):
    """An actuator did what was decided, or failed to."""

    action_id: Text | None = None
    status: Text | None = None
    result: Any = None
    error: Text | None = None
    duration_s: Seconds | None = None


class MetacogReport(CognitivePayload):
    """The mind's note about its own working."""

    summary: Text | None = None
    confidence: Unit | None = None
    metrics: dict[str, _Number] | None = None


class ProspectiveTrigger(CognitivePayload):
    """Something is to be remembered at a time, or on a condition."""

    trigger_id: Text | None = None
    due: datetime | None = None
    condition: Filter | None = None
    summary: Text | None = None


class TriggerFired(CognitivePayload):
    """A prospective trigger fell due."""

    trigger_id: Text | None = None
    fired_at: datetime | None = None
    summary: Text | None = None


class TemporalSummary(CognitivePayload):
    """What a stretch of time held: counts, patterns, tags."""

    start: datetime | None = None
    end: datetime | None = None
    tz: Text | None = None
    summary: Text | None = None
    counts: dict[str, Count] | None = None
    patterns: list[Any] | None = None
    tags: Tags | None = None


class LearningSignal(CognitivePayload):
    """A neuromodulatory signal: how much better or worse an outcome was than expected, and what to adjust."""

    signal: Text | None = None
    value: Signed | None = None
    target: Text | None = None
    action_id: Text | None = None
    event_id: Text | None = None


def _kind(type: str, model: type[CognitivePayload], topic: str, producers: str, consumers: str) -> Kind:
    by, to = tuple(producers.split(", ")), tuple(consumers.split(", "))
    return Kind(type=str(type), model=model, topic=topic, producers=by, consumers=to)


KINDS: Final = (
    _kind(EventType.ATTENTION_REQUEST, AttentionRequest, "metacog", "any module", "attention"),
    _kind(EventType.FOCUS_SHIFT_REQUEST, FocusShiftRequest, "metacog", "arbiter, metacognition", "attention"),
    _kind(EventType.COGNITIVE_LOAD_ALERT, CognitiveLoadAlert, "metacog", "attention", "metacognition, learning"),
    _kind(EventType.METACOG_REPORT, MetacogReport, "metacog", "metacognition", "learning"),
    _kind(EventType.LEARNING_SIGNAL, LearningSignal, "metacog", "learning", "arbiter, cortex"),
    _kind(EventType.WORKING_MEMORY_UPDATE, WorkingMemoryUpdate, "workspace", "writer, recall", "working memory"),
    _kind(EventType.WORKSPACE_BROADCAST, WorkspaceBroadcast, "workspace", "global workspace", "arbiter, recall"),
    _kind(
        EventType.GLOBAL_WORKSPACE_BROADCAST,
        GlobalWorkspaceBroadcast,
        "workspace",
        "global workspace",
        "arbiter, recall, learning",
    ),
    _kind(EventType.HIPPO_ENCODE, HippoEncode, "hippo", "writer", "hippocampus, temporal"),
    _kind(EventType.WRITE_ACCEPTED, WriteAccepted, "hippo", "hippocampus", "consolidation, temporal"),
    _kind(CONSOLIDATION_DUE, ConsolidationDue, "hippo", "hippocampus", "consolidation"),
    _kind(EventType.AFFECT_ANNOTATED, AffectAnnotated, "affect", "affect", "arbiter, learning"),
    _kind(EventType.CORTEX_PREDICTION, CortexPrediction, "cortex", "cortex", "arbiter"),
    _kind(EventType.ACTION_DECISION, ActionDecision, "actions", "arbiter", "actuators"),
    _kind(EventType.ACTION_EXECUTED, ActionExecuted, "actions", "actuators", "learning"),
    _kind(EventType.PROSPECTIVE_TRIGGER, ProspectiveTrigger, "prospective", "prospective", "prospective"),
    _kind(EventType.TRIGGER_FIRED, TriggerFired, "prospective", "prospective", "arbiter, workspace"),
    _kind(EventType.TEMPORAL_SUMMARY, TemporalSummary, "temporal", "temporal", "recall, prospective"),
)


def standard() -> Taxonomy:
    """A taxonomy of the kinds that ship, for the caller to add to."""
    return Taxonomy(KINDS)
