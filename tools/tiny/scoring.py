"""Reads the text of a reply (reasoning, content, tool calls) and says whether it is right."""
import json
import re


def parse_reply(text, think, tools):
    """The generated text (end token removed) -> message with content, reasoning_content, tool_calls; calls that do not
    follow the grammar stay in the content."""
    reasoning = ""
    if think:
        reasoning, found, rest = text.partition("</think>")
        if not found:
            return {"content": "", "reasoning_content": text, "tool_calls": []}
        text = rest.lstrip("\n")
    schemas = {t["function"]["name"]: t["function"].get("parameters", {}).get("properties", {}) for t in tools or []}
    calls = []

    def take(match):
        name, body = match.group(1), match.group(2)
        if not re.fullmatch(r"(<parameter=[^>\n]+>\n.*?\n</parameter>\n)*", body, re.S):
            return match.group(0)
        arguments = {}
        for key, value in re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", body, re.S):
            if schemas.get(name, {}).get(key, {}).get("type", "string") != "string":
                try:
                    value = json.loads(value)
                except ValueError:
                    pass
            arguments[key] = value
        calls.append({"type": "function", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}})
        return ""
    content = re.sub(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>\n?", take, text, flags=re.S)
    return {"content": content.strip(), "reasoning_content": reasoning.strip(), "tool_calls": calls}


TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def valid(value, schema):
    """Whether a value fits the subset of JSON schema that the prompts use."""
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (kind in ("integer", "number") and isinstance(value, bool))):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if kind == "array" and "items" in schema:
        return all(valid(v, schema["items"]) for v in value)
    if kind == "object":
        known = schema.get("properties", {})
        return all(k in value for k in schema.get("required", [])) and all(valid(v, known[k]) for k, v in value.items() if k in known)
    return True


def well_formed(message, tools):
    """Whether there is a call, and every call names a given tool and has valid arguments for it."""
    by_name = {t["function"]["name"]: t["function"].get("parameters", {}) for t in tools or []}
    if not message.get("tool_calls") or "<tool_call>" in (message.get("content") or "") or "<function=" in (message.get("content") or ""):
        return False
    for c in message["tool_calls"]:
        f = c["function"]
        schema = by_name.get(f["name"])
        try:
            arguments = json.loads(f["arguments"])
        except ValueError:
            return False
        if schema is None or not isinstance(arguments, dict):
            return False
        if any(k not in schema.get("properties", {}) for k in arguments) or not valid(arguments, {**schema, "type": "object"}):
            return False
    return True


def right(check, message):
    """Whether the message is what `check` asks for."""
    content, calls, want = (message.get("content") or "").strip(), message.get("tool_calls") or [], check["value"]
    if check["type"] == "calls":
        try:
            got = [{"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])} for c in calls]
        except ValueError:
            return False
        return got == want
    if calls:
        return False
    if check["type"] == "exact":
        return content == want.strip()
    if check["type"] == "contains":
        return all(v in content for v in want)
    if check["type"] == "ends":
        return content.endswith(want)
    if check["type"] == "number":
        numbers = re.findall(r"-?\d+", content.replace(" - ", " minus "))
        return bool(numbers) and int(numbers[-1]) == want
    if check["type"] == "json":
        try:
            return json.loads(content) == want
        except ValueError:
            return False
    raise ValueError(check["type"])


def report(rows):
    """rows: (kind, right, well_formed or None) -> lines of a table, share right, share of calls well-formed."""
    kinds, lines = {}, []
    for kind, ok, formed in rows:
        k = kinds.setdefault(kind, [0, 0, 0, 0])
        k[0] += 1
        k[1] += ok
        if formed is not None:
            k[2] += 1
            k[3] += formed
    lines.append("| kind | prompts | right | well-formed calls |")
    lines.append("|---|---|---|---|")
    for kind, (n, ok, calls, formed) in kinds.items():
        lines.append(f"| {kind} | {n} | {ok} ({100 * ok / n:.1f} %) | {f'{formed} of {calls}' if calls else ''} |")
    n, ok = len(rows), sum(r[1] for r in rows)
    calls, formed = sum(r[2] is not None for r in rows), sum(bool(r[2]) for r in rows)
    lines.append(f"| all | {n} | {ok} ({100 * ok / max(n, 1):.1f} %) | {formed} of {calls} ({100 * formed / max(calls, 1):.1f} %) |")
    return lines, ok / max(n, 1), formed / max(calls, 1)
