"""Penn Treebank: the next word of a text, judged by perplexity."""

from .task import LanguageTask as TASK

__all__ = ["TASK"]
