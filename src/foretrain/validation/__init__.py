"""Predicted against measured."""

from foretrain.validation.validate import ValidationReport, validate

__all__ = ["ValidationReport", "validate"]
