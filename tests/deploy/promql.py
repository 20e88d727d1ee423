"""Reads PromQL: which series an expression asks for, and which labels its answer has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as p

from deploy.exported import Series

# What Grafana puts in before it asks.
VARIABLES = {"$__rate_interval": "1m", "$__interval": "15s", "$__range": "1h"}
TEMPLATE_LABEL = re.compile(r"\$labels\.(\w+)")
LEGEND_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def parse(text: str) -> p.Expr:
    """The expression; raises ValueError where it is none."""
    for variable, value in VARIABLES.items():
        text = text.replace(variable, value)
    return p.parse(text)


def selectors(expr: Any) -> Iterator[p.VectorSelector]:
    """Every place where an expression names series."""
    match expr:
        case p.VectorSelector():
            yield expr
        case p.MatrixSelector():
            yield expr.vector_selector
        case p.BinaryExpr():
            yield from selectors(expr.lhs)
            yield from selectors(expr.rhs)
        case p.Call():
            for argument in expr.args:
                yield from selectors(argument)
        case p.AggregateExpr() | p.ParenExpr() | p.UnaryExpr() | p.SubqueryExpr():
            yield from selectors(expr.expr)


def matched_labels(selector: p.VectorSelector) -> set[str]:
    return {matcher.name for matcher in selector.matchers.matchers}


def labels_of(expr: Any, known: Series) -> frozenset[str]:
    """The labels that the answer has; raises where an expression asks for one that is not there."""
    match expr:
        case p.VectorSelector():
            return known[expr.name]
        case p.MatrixSelector():
            return known[expr.vector_selector.name]
        case p.AggregateExpr():
            return _of_aggregate(expr, known)
        case p.BinaryExpr():
            return _of_pair(expr, known)
        case p.Call():
            return _of_call(expr, known)
    # Brackets and signs change no label, and a number has none.
    return labels_of(expr.expr, known) if hasattr(expr, "expr") else frozenset()


def _of_aggregate(expr: p.AggregateExpr, known: Series) -> frozenset[str]:
    inner = labels_of(expr.expr, known)
    if expr.modifier is None:
        return frozenset()
    named = frozenset(expr.modifier.labels)
    assert named <= inner, f"{sorted(named - inner)} of {expr.prettify()}"
    is_by = expr.modifier.type == p.AggModifierType.By
    return named if is_by else inner - named


def _of_pair(expr: p.BinaryExpr, known: Series) -> frozenset[str]:
    left, right = labels_of(expr.lhs, known), labels_of(expr.rhs, known)
    if _is_number(expr.lhs) or _is_number(expr.rhs):
        return left | right
    matching = expr.modifier.matching if expr.modifier else None
    if matching is None:
        assert left == right or not right, f"{sorted(left ^ right)} of {expr.prettify()}"
    else:
        assert set(matching.labels) <= left & right, expr.prettify()
    return left


def _of_call(expr: p.Call, known: Series) -> frozenset[str]:
    name = expr.func.name
    inner = frozenset().union(*(labels_of(argument, known) for argument in expr.args))
    if name == "histogram_quantile":
        assert "le" in inner, f"le is missing in {expr.prettify()}"
        return inner - {"le"}
    return frozenset() if name in ("absent", "vector") else inner


def _is_number(expr: Any) -> bool:
    return isinstance(expr, p.NumberLiteral) or (
        isinstance(expr, p.ParenExpr) and _is_number(expr.expr)
    )
