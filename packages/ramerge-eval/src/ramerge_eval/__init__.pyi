from .models import EvaluationTarget
from .run import EvaluationRequest, evaluate
from .task_scores import TaskScore

__all__ = ["EvaluationRequest", "EvaluationTarget", "TaskScore", "evaluate"]
