"""Models from whatever the user has: a name, a file, a dict.

- a zoo name;
- a path to a Hugging Face `config.json` (has `model_type`), or the folder that holds it;
- a path to our YAML or JSON (exactly one of `zoo`, `transformer`, `blocks`);
- the same content as a dict, or the `model` key of a case (`zoo`, or `family` and a shape).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from foretrain.errors import FileError, ModelError, did_you_mean, refuse
from foretrain.limits import SEQUENCE
from foretrain.loading import is_file, load_json, load_yaml
from foretrain.model import zoo
from foretrain.model.details import NAMES, Details
from foretrain.model.graph import Model
from foretrain.model.shape import TransformerShape
from foretrain.model.transformer import transformer

_KINDS = ("zoo", "transformer", "blocks")
_KEYS = ("name", "seq", "source", "overrides", "tied", *_KINDS)
_ENDINGS = (".json", ".yaml", ".yml")


def load_model(
    spec: str | Path | Mapping[str, Any] | Model,
    seq: int | None = None,
    notes: list[str] | None = None,
) -> Model:
    """A Model from any of the forms above; `seq` overrides the length the form gives. What a shape leaves open and
    had to be assumed is added to `notes`."""
    if seq is not None and not SEQUENCE.allows(seq):
        raise ModelError(f"sequence length: {SEQUENCE.fault(seq)}")
    if isinstance(spec, Model):
        return spec
    if isinstance(spec, Mapping):
        return _from_mapping(spec, seq, "", "the given model", notes)
    if _is_file(spec):
        _expect_no_hub_name(spec)
        return _from_file(Path(spec), seq, notes)
    return zoo.build(str(spec), seq)


def _is_file(spec: str | Path) -> bool:
    """A path is anything with a folder or a known ending, which names never have, or a folder that holds a model."""
    if isinstance(spec, Path):
        return True
    if Path(spec).suffix.lower() in _ENDINGS or "/" in spec or "\\" in spec:
        return True
    return is_file(Path(spec) / "config.json")


_HUB_NAME = re.compile(r"([\w.-]+)/([\w.-]+)", re.ASCII)


def _expect_no_hub_name(spec: str | Path) -> None:
    """`meta-llama/Llama-3.1-8B` that is not on disk: nothing is downloaded, but the zoo may have it."""
    match = _HUB_NAME.fullmatch(spec) if isinstance(spec, str) else None
    if match is None or Path(spec).suffix.lower() in _ENDINGS or Path(match[1]).exists():
        return
    plain = match[2].lower().replace("-", "")
    inside = [name for name in zoo.names() if name.replace("-", "") in plain]
    near = [max(inside, key=len)] if inside else zoo.names()
    word = near[0] if inside else match[2]
    raise FileError(
        f"{spec} does not exist on disk, and nothing is downloaded from Hugging Face."
        f"{did_you_mean(word, near)} Specify a zoo name ('foretrain catalog list models') or the "
        "path of its config.json."
    )


def holds_model(path: str) -> bool:
    """Whether a file, or a folder, is of a model rather than of something else that is written in YAML or JSON."""
    if is_file(Path(path) / "config.json"):
        return True
    if Path(path).suffix.lower() not in _ENDINGS or not is_file(path):
        return False
    is_json = Path(path).suffix.lower() == ".json"
    data = (load_json if is_json else load_yaml)(Path(path), "a model or a cluster")
    return isinstance(data, Mapping) and not {"model_type", "family", *_KINDS}.isdisjoint(data)


def _from_file(path: Path, seq: int | None, notes: list[str] | None) -> Model:
    what = "a model: a Hugging Face config.json or Foretrain YAML"
    if is_file(path / "config.json"):  # as a model is saved and downloaded
        path = path / "config.json"
    is_json = path.suffix.lower() == ".json"
    data = load_json(path, what) if is_json else load_yaml(path, what)
    if not isinstance(data, Mapping):
        raise ModelError(f"{path} contains {type(data).__name__}, not a mapping; expected {what}.")
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return _from_mapping(data, seq, name, str(path), notes)


def _from_mapping(
    data: Mapping[str, Any], seq: int | None, name: str, where: str, notes: list[str] | None
) -> Model:
    if "model_type" in data:
        from foretrain.model.huggingface import model_from_config

        return model_from_config(data, seq, name)
    if "family" in data:
        from foretrain.model.case import model_from_case

        model, assumed = model_from_case(data, seq, name)
        if notes is not None:
            notes += assumed
        return model
    kinds = [kind for kind in _KINDS if kind in data]
    if len(kinds) != 1:
        raise ModelError(
            f"{where}: specify exactly one of {', '.join(_KINDS)} (or a Hugging Face "
            f"model_type, or a case's family); got {', '.join(kinds) or 'none'}."
        )
    return _from_own(data, kinds[0], seq, name, where)


def _from_own(data: Mapping[str, Any], kind: str, seq: int | None, name: str, where: str) -> Model:
    from foretrain.model.case import model_from_case

    if kind == "zoo" and not set(data) & {"overrides", "seq", "name", "source"}:
        return model_from_case(data, seq)[0]  # a case's model key
    known = (*_KEYS, "details") if kind == "blocks" else _KEYS
    unknown = [f"{k}: unknown key.{did_you_mean(k, known)}" for k in data if k not in known]
    refuse(f"{where} is invalid:", unknown, ModelError)
    length = seq or _length(data, where)
    label = str(data.get("name") or name or data.get("zoo") or "model")
    if kind == "blocks":
        from foretrain.model.document import model_from_document

        return model_from_document({**data, "name": label}, where)
    if kind == "zoo":
        overrides = _mapping(data.get("overrides") or {}, f"{where}: overrides")
        return model_from_case({"zoo": data["zoo"], **overrides}, length, label)[0]
    given = _mapping(data["transformer"], f"{where}: transformer")
    shape, details = _shape(given, where), Details.of(given, where)
    return transformer(shape, length or 2048, label, str(data.get("source", "")), details)


def _shape(data: Mapping[str, Any], where: str) -> TransformerShape:
    known = [*(field.name for field in fields(TransformerShape)), *NAMES]
    required = known[:4]
    faults = [
        f"transformer.{k}: unknown key.{did_you_mean(k, known)}" for k in data if k not in known
    ]
    faults += [f"transformer.{k}: missing." for k in required if data.get(k) is None]
    refuse(f"{where} is invalid:", faults, ModelError)
    return TransformerShape(**{key: data[key] for key in data if key not in NAMES})


def _length(data: Mapping[str, Any], where: str) -> int | None:
    value = data.get("seq")
    if value is None:
        return None
    if not SEQUENCE.allows(value):
        raise ModelError(f"{where}: seq: {SEQUENCE.fault(value)}")
    return int(value)


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ModelError(f"{where} is {value!r}, not a mapping.")
    return value
