"""What a person looks at: progress and its lines, `events.jsonl`, plots. Knows of no session."""

from argosy.observe.journal import record as record

__all__ = ["record"]
