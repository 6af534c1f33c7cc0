"""Predicted against measured."""

from foretrain.validation.cases import ValidationReport, validate

__all__ = ["ValidationReport", "validate"]
