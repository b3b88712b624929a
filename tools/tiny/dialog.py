"""How a conversation becomes text: the official chat template in Python, cut into segments with and without loss.

A conversation is {"messages": [...], "tools": [...] or None, "think": bool, "kind": str, "check": {...}}. Assistant
messages hold `content` and may hold `reasoning_content` and `tool_calls` (arguments as objects). `think` says whether
the turns after the last user query think. tests in rehearse.py compare `render` with the jinja2 template."""
import json

TOOLS_HEAD = "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n"
    "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified "
    "format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n- You may provide optional reasoning for your function call in natural "
    "language BEFORE the function call, but NOT after\n- If there is no function call available, answer the question "
    "like normal with your current knowledge and do not tell the user about function calls\n</IMPORTANT>")


def to_json(value):
    return json.dumps(value, ensure_ascii=False)


def tool_calls_text(message):
    """The <tool_call> blocks of an assistant message, with the blank line that separates them from content."""
    out = ""
    for i, call in enumerate(message.get("tool_calls") or []):
        call = call["function"]
        out += "\n" if i else ("\n\n" if message["content"].strip() else "")
        out += f"<tool_call>\n<function={call['name']}>\n"
        for name, value in call["arguments"].items():
            out += f"<parameter={name}>\n{value if isinstance(value, str) else to_json(value)}\n</parameter>\n"
        out += "</function>\n</tool_call>"
    return out


def render(conversation):
    """-> list of (text, learn): concatenated it is what the template gives; `learn` marks what the model must write."""
    messages, tools = conversation["messages"], conversation.get("tools")
    out = []
    if tools:
        text = TOOLS_HEAD + "".join("\n" + to_json(t) for t in tools) + TOOLS_TAIL
        if messages[0]["role"] == "system" and messages[0]["content"].strip():
            text += "\n\n" + messages[0]["content"].strip()
        out.append((text + "<|im_end|>\n", False))
    elif messages[0]["role"] == "system":
        out.append((f"<|im_start|>system\n{messages[0]['content'].strip()}<|im_end|>\n", False))
    last_query = max(i for i, m in enumerate(messages) if m["role"] == "user")
    for i, m in enumerate(messages):
        content = m["content"].strip()
        if m["role"] == "user":
            out.append((f"<|im_start|>user\n{content}<|im_end|>\n", False))
        elif m["role"] == "assistant":
            head, body = "<|im_start|>assistant\n", content + tool_calls_text(m) + "<|im_end|>"
            if i > last_query:
                if conversation["think"]:
                    head += "<think>\n"
                    body = m.get("reasoning_content", "").strip() + "\n</think>\n\n" + body
                else:
                    head += "<think>\n\n</think>\n\n"
            out += [(head, False), (body, True), ("\n", False)]
        elif m["role"] == "tool":
            text = "<|im_start|>user" if messages[i - 1]["role"] != "tool" else ""
            text += f"\n<tool_response>\n{content}\n</tool_response>"
            if i + 1 == len(messages) or messages[i + 1]["role"] != "tool":
                text += "<|im_end|>\n"
            out.append((text, False))
    return out


def prompt_text(conversation):
    """What the model is given before it writes the last assistant message."""
    *head, _, _ = render(conversation)
    return "".join(t for t, _ in head)


def request_body(conversation, max_tokens=512):
    """The chat-completions request whose answer is the last assistant message."""
    messages = []
    for m in conversation["messages"][:-1]:
        m = dict(m)
        m.pop("reasoning_content", None)
        if m.get("tool_calls"):
            m["tool_calls"] = [{"id": c["id"], "type": "function", "function": {
                "name": c["function"]["name"], "arguments": to_json(c["function"]["arguments"])}} for c in m["tool_calls"]]
        messages.append(m)
    body = {"messages": messages, "temperature": 0, "max_tokens": max_tokens,
            "chat_template_kwargs": {"enable_thinking": conversation["think"]}}
    if conversation.get("tools"):
        body["tools"] = conversation["tools"]
    return body
