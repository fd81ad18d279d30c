"""`bi_inductor.check`: one function at several batch sizes, orders, places and paddings, the rows compared bit for bit."""

from .check import check as check
from .result import CheckResult as CheckResult
