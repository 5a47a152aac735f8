"""docs/configuration.md, made of the settings themselves."""

from __future__ import annotations

import inspect
import json
import re

from pydantic import BaseModel

from serve_app.cli.settings_tree import REQUIRED, Setting, settings_of
from serve_app.settings import AppSettings, LiveSettings

_HEAD = """\
# Configuration

Every setting with its default and its meaning. This page is made of the settings themselves by
`disco config reference`, and a test compares it with them. `disco config show FILE` says what is in force of a file.

A configuration is a Ray Serve file with one application, such as [disco.yaml](../configs/disco.yaml). Its `args` are
the application's settings; a change restarts replicas. The `user_config` of the deployment `DiscoRouter` holds the live
settings; a change, by `serve deploy`, cuts no stream.

```yaml
proxy_location: HeadOnly
http_options: {host: 127.0.0.1, port: 8000}
applications:
  - name: disco
    route_prefix: /
    import_path: serve_app.app:build_app
    args:
      endpoints:
        cloud: {kind: cloud, engine: {type: simulated}}
    deployments:
      - name: DiscoRouter
        user_config:
          reader: {consumption_rate: 4.8}
```

Units are seconds, tokens, tokens per second, joules and USD unless a line says otherwise. Unknown keys are errors.
NAME stands for a name of yours: letters, digits, dots, dashes and underscores. No secret belongs into a configuration:
keys of servers are named by their environment variable, keys of clients by their hash. Of exponents, YAML takes
`5.0e+3` for a number and `5e3` for text."""

_PARTS = (
    ("args", "Settings of the application: `args`", AppSettings),
    ("user_config", "Live settings: `user_config`", LiveSettings),
)

#: Where each model is described: the first place at which it stands in the tree.
_Titles = dict[type[BaseModel], str]


def reference() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    for path, heading, root in _PARTS:
        titles: _Titles = {}
        _place(path, root, titles)
        for model, title in titles.items():
            parts += [f"## {heading}"] if model is root else [f"### {title}", *_meaning(model)]
            parts.append(_table(model, titles))
    return "\n\n".join(parts) + "\n"


def anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _place(path: str, model: type[BaseModel], titles: _Titles) -> None:
    kind = model.model_fields.get("type")
    titles[model] = f"`{path}`" if kind is None else f"`{path}` with `type: {kind.default}`"
    for setting in settings_of(model):
        below = f"{path}.{setting.name}.NAME" if setting.many else f"{path}.{setting.name}"
        for inner in setting.below:
            if inner not in titles:
                _place(below, inner, titles)


def _meaning(model: type[BaseModel]) -> list[str]:
    """What its own docstring says."""
    own = model.__dict__.get("__doc__")
    return [inspect.cleandoc(own).replace("``", "`")] if own else []


def _table(model: type[BaseModel], titles: _Titles) -> str:
    lines = ["| setting | value | default | meaning |", "|---|---|---|---|"]
    for setting in settings_of(model):
        if setting.name != "type":
            cells = (f"`{setting.name}`", _value(setting, titles), _default(setting), setting.meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _value(setting: Setting, titles: _Titles) -> str:
    links = [f"#{anchor(titles[model])}" for model in setting.below]
    if len(links) == 1:
        return f"[mapping by NAME]({links[0]})" if setting.many else f"[mapping]({links[0]})"
    kinds = (model.model_fields["type"].default for model in setting.below)
    return ", ".join(f"[`{kind}`]({link})" for kind, link in zip(kinds, links, strict=True)) or setting.kind


def _default(setting: Setting) -> str:
    if setting.default == REQUIRED:
        return REQUIRED
    return "" if setting.below else f"`{json.dumps(setting.default, ensure_ascii=False)}`"
