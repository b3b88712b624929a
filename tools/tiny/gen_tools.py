"""Conversations with tools: made-up and everyday tools with random names and schemas, one call, several calls, no call,
and answers from results. `tool_conversation` gives a whole conversation whose last message is what is asked for."""
import json

from gen_basic import contains, question, vary
from words import *

SYSTEMS = ["You are a helpful assistant.", "You are a helpful assistant with tools.", "Be brief.", "You are Calla Tiny.",
           "You are a friendly assistant. Keep answers short.", "Use the tools when they help.", "Answer the user's questions.",
           "You help the user with daily tasks.", "Follow the instructions of the user."]
VERBS = "get set find list make read send open look_up check fetch search update start stop count show load save run".split()
THINGS = """price status level address colour owner weight height schedule label score balance rating region title
position speed capacity temperature humidity category version language origin length number deadline budget""".split()

# name, description, [(parameter, type, description, required, kind of value)], phrasings; {p} is the value of p.
# A phrasing that names an optional parameter passes it.
EVERYDAY = [
    ("get_weather", "Get the current weather for a city", [("city", "string", "The city", True, "city"), ("unit", "enum:celsius,fahrenheit", "The unit", False, "")],
     ["What is the weather in {city}?", "How is the weather in {city}?", "Weather in {city}, please.", "What is the weather like in {city} in {unit}?", "Tell me the weather for {city} in {unit}.", "Is it warm in {city}?"]),
    ("get_weather", "Get the weather at a location", [("location", "string", "City name", True, "city")],
     ["What is the weather in {location}?", "What's the weather like in {location}?", "How is the weather in {location} today?", "Tell me the weather for {location}."]),
    ("get_forecast", "Get the weather forecast", [("city", "string", "City", True, "city"), ("days", "integer", "Number of days", True, "small")],
     ["Give me the forecast for {city} for {days} days.", "What will the weather be in {city} over the next {days} days?", "{days} day forecast for {city}, please."]),
    ("get_time", "Get the current time in a city", [("city", "string", "The city", True, "city")],
     ["What time is it in {city}?", "Tell me the time in {city}.", "What is the current time in {city}?"]),
    ("send_email", "Send an e-mail", [("to", "string", "Receiver", True, "email"), ("subject", "string", "Subject", True, "phrase"), ("body", "string", "Text", True, "text")],
     ["Send an e-mail to {to} with the subject \"{subject}\" and the text \"{body}\".", "Email {to}, subject \"{subject}\": \"{body}\""]),
    ("send_message", "Send a message to a person", [("recipient", "string", "Who gets it", True, "person"), ("message", "string", "The message", True, "text")],
     ["Send {recipient} the message \"{message}\".", "Tell {recipient}: \"{message}\"", "Write to {recipient}: \"{message}\""]),
    ("set_timer", "Start a timer", [("minutes", "integer", "Minutes", True, "number"), ("label", "string", "Name of the timer", False, "word")],
     ["Set a timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Set a timer called {label} for {minutes} minutes."]),
    ("calculate", "Evaluate an arithmetic expression", [("expression", "string", "The expression", True, "expression")],
     ["Use the calculator for {expression}.", "Calculate {expression} with the tool.", "Evaluate {expression} with the calculator."]),
    ("search", "Search the web", [("query", "string", "What to look for", True, "phrase"), ("limit", "integer", "Number of results", False, "small")],
     ["Search for \"{query}\".", "Look up \"{query}\" on the web.", "Find {limit} results for \"{query}\"."]),
    ("convert_currency", "Convert an amount of money", [("amount", "number", "Amount", True, "float"), ("source", "string", "From", True, "currency"), ("target", "string", "To", True, "currency")],
     ["Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?"]),
    ("turn_on", "Turn a device on or off", [("device", "string", "The device", True, "noun"), ("on", "boolean", "true for on", True, "onoff")],
     ["Turn the {device} {on}.", "Switch the {device} {on}, please.", "Please turn {on} the {device}."]),
    ("play_music", "Play a song", [("title", "string", "Title", True, "phrase"), ("artist", "string", "Artist", False, "person"), ("volume", "integer", "0 to 100", False, "number")],
     ["Play \"{title}\".", "Play \"{title}\" by {artist}.", "Play \"{title}\" at volume {volume}.", "Play \"{title}\" by {artist} at volume {volume}."]),
    ("create_event", "Add an event to the calendar", [("title", "string", "Title", True, "phrase"), ("day", "string", "Day of the week", True, "day"), ("guests", "array:string", "Guests", False, "people")],
     ["Add \"{title}\" on {day} to my calendar.", "Create an event \"{title}\" on {day} with {guests}.", "Put \"{title}\" into the calendar for {day}."]),
    ("get_stock_price", "Get the price of a stock", [("symbol", "string", "Ticker symbol", True, "ticker")],
     ["What is the stock price of {symbol}?", "How much does a share of {symbol} cost?", "Price of {symbol}?"]),
    ("translate", "Translate a text", [("text", "string", "The text", True, "phrase"), ("language", "string", "Target language", True, "language")],
     ["Translate \"{text}\" into {language}.", "How do you say \"{text}\" in {language}? Use the tool."]),
    ("add", "Add numbers", [("numbers", "array:integer", "The numbers", True, "ints")], ["Add the numbers {numbers} with the tool.", "Use the add tool on {numbers}."]),
    ("add_numbers", "Add two numbers", [("a", "integer", "First", True, "number"), ("b", "integer", "Second", True, "number")],
     ["Use the tool to add {a} and {b}.", "Add {a} and {b} with the tool.", "Call the tool for {a} plus {b}."]),
    ("read_file", "Read a file", [("path", "string", "Path of the file", True, "path")], ["Read the file {path}.", "Show me {path}.", "What is in {path}?", "Open {path}."]),
    ("write_file", "Write a file", [("path", "string", "Path", True, "path"), ("content", "string", "Text", True, "text"), ("append", "boolean", "Append", False, "bool")],
     ["Write \"{content}\" to {path}.", "Save \"{content}\" in the file {path}.", "Write \"{content}\" to {path} with append {append}."]),
    ("book_table", "Book a table in a restaurant", [("restaurant", "string", "Name", True, "person"), ("people", "integer", "How many", True, "small"), ("time", "string", "Time", True, "time")],
     ["Book a table for {people} at {restaurant} at {time}.", "I need a table at {restaurant} for {people} people at {time}."]),
    ("get_user", "Look up a user by id", [("user_id", "integer", "The id", True, "number")], ["Look up user {user_id}.", "Who is user {user_id}?", "Show the user with the id {user_id}."]),
    ("set_colour", "Set the colour of a lamp", [("lamp", "string", "Lamp", True, "noun"), ("rgb", "object", "Red, green, blue", True, "rgb")],
     ["Set the colour of the {lamp} to {rgb}.", "Make the {lamp} {rgb}."]),
    ("list_files", "List the files of a folder", [("folder", "string", "Folder", False, "path")], ["List the files.", "List the files in {folder}.", "Which files are in {folder}?"]),
    ("roll_dice", "Roll dice", [], ["Roll the dice.", "Please roll the dice for me."]),
]


def value(rng, kind):
    """-> (value, how a user writes it)."""
    n = rng.randint
    if kind == "city": v = city(rng)
    elif kind == "person": v = person(rng)
    elif kind == "word": v = rng.choice(WORDS)
    elif kind == "noun": v = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}" if rng.random() < 0.5 else rng.choice(NOUNS)
    elif kind == "day": v = rng.choice(DAYS)
    elif kind == "language": v = rng.choice("French German Spanish Italian Dutch Polish Czech Greek Latin Danish".split())
    elif kind == "currency": v = rng.choice("USD EUR GBP JPY CHF CAD AUD SEK PLN INR".split())
    elif kind == "ticker": v = "".join(rng.choice("ABCDEFGHIKLMNOPRSTUVWXYZ") for _ in range(n(2, 5)))
    elif kind == "email": v = f"{person(rng).lower()}@{made_up(rng)}.{rng.choice(['com', 'org', 'net', 'de'])}"
    elif kind == "phrase": v = " ".join(rng.choice(WORDS) for _ in range(n(1, 4)))
    elif kind == "text": v = sentence(rng) if rng.random() < 0.5 else " ".join([rng.choice(WORDS) for _ in range(n(2, 6))])
    elif kind == "code": v = code(rng)
    elif kind == "made": v = made_up(rng)
    elif kind == "path": v = "/".join([rng.choice(["", "home", "data", "src", "docs"])] + [rng.choice(WORDS) for _ in range(n(1, 2))]) + rng.choice([".txt", ".md", ".json", ".c", ""])
    elif kind == "time": v = f"{n(7, 22)}:{n(0, 5)}{n(0, 9)}"
    elif kind == "expression": v = f"{n(1, 99)} {rng.choice('+-*/')} {n(1, 99)}"
    elif kind == "small": v = n(1, 12)
    elif kind == "number": v = n(0, 10 ** n(1, 4))
    elif kind == "float": v = round(rng.random() * 10 ** n(1, 3), n(1, 2)) if rng.random() < 0.6 else n(1, 500)
    elif kind == "bool": v = rng.random() < 0.5
    elif kind == "onoff":
        v = rng.random() < 0.5
        return v, "on" if v else "off"
    elif kind == "people":
        v = [rng.choice(NAMES) for _ in range(n(1, 3))]
        return v, join(v)
    elif kind == "strings":
        v = [rng.choice(WORDS) if rng.random() < 0.7 else made_up(rng) for _ in range(n(1, 4))]
        return v, rng.choice([json.dumps(v), join(v), ", ".join(v)])
    elif kind == "ints":
        v = [n(0, 99) for _ in range(n(2, 5))]
        return v, rng.choice([json.dumps(v), join(map(str, v)), ", ".join(map(str, v))])
    elif kind == "rgb":
        v = {"r": n(0, 255), "g": n(0, 255), "b": n(0, 255)}
        return v, rng.choice([json.dumps(v), f"r {v['r']}, g {v['g']}, b {v['b']}"])
    elif kind == "object":
        v = {rng.choice(WORDS): rng.choice([n(0, 999), rng.choice(WORDS), made_up(rng)]) for _ in range(n(1, 3))}
    else: raise ValueError(kind)
    return v, v if isinstance(v, str) else json.dumps(v)


def schema(kind, description, rng):
    """The JSON schema of one parameter."""
    base, _, rest = kind.partition(":")
    s = {"type": "string", "enum": rest.split(",")} if base == "enum" else {"type": base}
    if base == "array":
        s["items"] = {"type": rest}
    if base == "object" and rest:
        s["properties"] = {p.split("=")[0]: {"type": p.split("=")[1]} for p in rest.split(",")}
        s["required"] = list(s["properties"])
    if description and rng.random() < 0.6:
        s["description"] = description
    return s


def definition(rng, tool):
    name, description, params, _ = tool
    p = {"type": "object", "properties": {n: schema(k, d, rng) for n, k, d, _, _ in params}}
    required = [n for n, _, _, r, _ in params if r]
    if required or rng.random() < 0.5:
        p["required"] = required
    if rng.random() < 0.1:
        p["additionalProperties"] = False
    f = {"name": name, "description": description, "parameters": p}
    if rng.random() < 0.1:
        del f["description"]
    return {"type": "function", "function": f}


def made_up_tool(rng):
    """A tool with a random name, random parameters of all types, and phrasings that list them."""
    parts = [rng.choice(VERBS)] + [rng.choice([rng.choice(THINGS), made_up(rng), rng.choice(WORDS)]) for _ in range(rng.randint(1, 2))]
    style = rng.randrange(5)
    if style == 0: name = parts[0] + "".join(p.capitalize() for p in parts[1:])
    elif style == 1: name = "-".join(parts)
    elif style == 2: name = made_up(rng)
    else: name = "_".join(parts)
    params, used = [], set()
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 3, 4, 5])):
        p = rng.choice([rng.choice(WORDS), rng.choice(THINGS), made_up(rng), f"{rng.choice(WORDS)}_{rng.choice(['id', 'name', 'count', 'list', 'flag', 'size'])}"])
        if p in used:
            continue
        used.add(p)
        kind, kinds = rng.choice([
            ("string", ["word", "phrase", "code", "made", "person", "city", "text", "path"]), ("string", ["word", "code", "made", "person", "noun"]),
            ("integer", ["number", "small"]), ("number", ["float", "number"]), ("boolean", ["bool"]), ("array:string", ["strings"]),
            ("array:integer", ["ints"]), ("object", ["object"]), ("enum", ["enum"])])
        if kind == "enum":
            kind = "enum:" + ",".join(rng.sample(WORDS, rng.randint(2, 4)) if rng.random() < 0.6 else [made_up(rng) for _ in range(3)])
        params.append((p, kind, f"The {rng.choice(ADJECTIVES)} {p.replace('_', ' ')}" if rng.random() < 0.5 else "", rng.random() < 0.7, rng.choice(kinds)))
    params = [p if p[4] != "enum" else p[:4] + ("",) for p in params]
    thing, what = rng.choice(THINGS), rng.choice(NOUNS)
    single = len(params) == 1 and params[0][1] == "string" and params[0][3]
    description = f"Get the {thing} of a {what}" if single else rng.choice([f"Tool for the {thing} of a {what}", f"{parts[0].capitalize()} the {thing}", made_up(rng).capitalize(), f"Works on the {what}"])
    phrasings = None
    if single and rng.random() < 0.5:
        p = params[0][0]
        phrasings = [f"What is the {thing} of the {what} {{{p}}}?", f"I need the {thing} of the {what} {{{p}}}.", f"Tell me the {thing} of the {what} {{{p}}}."]
    return name, description, params, phrasings


def call(rng, tool):
    """-> (request text, arguments) for one use of a tool."""
    name, _, params, phrasings = tool
    values, texts = {}, {}
    for p, kind, _, _, v in params:
        values[p], texts[p] = value(rng, v) if v else (lambda x: (x, x))(rng.choice(kind.split(":")[1].split(",")))
    if phrasings:
        text = rng.choice(phrasings)
        given = [p for p, *_ in params if "{" + p + "}" in text]
        return text.format(**texts), {p: values[p] for p in values if p in given}
    given = [p for p, _, _, required, _ in params if required or rng.random() < 0.5]
    mention = given[:]
    if rng.random() < 0.4:
        rng.shuffle(mention)
    style = rng.randrange(4)
    items = []
    for p in mention:
        v = texts[p]
        quote = isinstance(values[p], str) and (" " in v or "," in v or rng.random() < 0.4)
        if quote:
            q = rng.choice('"\'') if "'" not in v else '"'
            v = f"{q}{v}{q}"
        items.append([f"{p}={v}", f"{p}: {v}", f"{p} {v}", f"{p} is {v}"][style])
    use = rng.choice(["Call {n}", "Use {n}", "Please call {n}", "Run {n}", "Please use the tool {n}", "Call the function {n}", "I want you to run {n}", "Can you call {n}", "Invoke {n}"]).format(n=name)
    if not items:
        return use + ".", {}
    sep = rng.choice([" with ", ": ", " using "]) if style != 3 else rng.choice([" where ", ": "])
    return use + sep + (join(items) if rng.random() < 0.5 else ", ".join(items)) + rng.choice([".", ""]), {p: values[p] for p in values if p in given}


def result(rng):
    """-> (text of a tool result, the sentence that answers from it, the values that must appear)."""
    r = rng.random()
    if r < 0.62:
        n = rng.choice([1, 1, 2, 2, 3])
        keys = rng.sample(THINGS + ["id", "name", "city", "sky", "state", "wind_speed", "total_count", "user_name"], n)
        obj = {}
        for k in keys:
            v = rng.choice([rng.randint(0, 999), rng.randint(-20, 40), rng.choice(WORDS), made_up(rng), code(rng), person(rng), round(rng.random() * 99, 1), rng.random() < 0.5])
            obj[k] = v
        shown = [v if isinstance(v, str) else json.dumps(v) for v in obj.values()]
        parts = [f"the {k.replace('_', ' ')} is {v}" for k, v in zip(obj, shown)]
        s = join(parts) + "."
        return json.dumps(obj), s[0].upper() + s[1:], shown
    if r < 0.80:
        v = rng.choice([str(rng.randint(0, 9999)), rng.choice(WORDS), made_up(rng), code(rng), "ok", "done", f"{rng.randint(-10, 35)} degrees", rng.choice(WORDS) + " " + rng.choice(WORDS)])
        return v, f"The result is {v}.", [v]
    if r < 0.92:
        v = [rng.choice([rng.choice(WORDS), made_up(rng), person(rng)]) for _ in range(rng.randint(1, 4))]
        return json.dumps(v), (f"The results are {join(v)}." if len(v) > 1 else f"The result is {v[0]}."), v
    v = rng.choice(["not found", "permission denied", "timeout", "unknown " + rng.choice(THINGS), "no such " + rng.choice(NOUNS), "invalid " + rng.choice(THINGS)])
    return json.dumps({"error": v}), f"The call failed: {v}.", [v]


def calls_message(rng, calls, think):
    names = [f"{n} with {join(a)}" if a else n for n, a in calls]
    reason = f"I call {join(names)}." if len(calls) == 1 else f"I make {len(calls)} calls: {', '.join(names)}."
    return {"role": "assistant", "content": "", "reasoning_content": reason, "tool_calls": [
        {"id": f"call_{rng.randrange(10 ** 6)}", "type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]}


def tool_conversation(rng, held, think, kind=None):
    """kind: 'tool call', 'parallel calls', 'no call needed' or 'answer from result'; None draws one."""
    tools, names = [], set()
    for _ in range(rng.choice([1, 1, 2, 2, 3, 4])):
        t = rng.choice(EVERYDAY) if rng.random() < 0.45 else made_up_tool(rng)
        if t[0] not in names:
            names.add(t[0])
            tools.append(t)
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    final = kind or rng.choices(["tool call", "parallel calls", "no call needed", "answer from result"], [44, 24, 10, 22])[0]
    for turn in range(rng.choice([0, 0, 0, 1, 1, 2]) + 1):
        if turn:  # earlier turns; the asked-for kind comes last
            k = rng.choices(["answer from result", "no call needed", "parallel"], [60, 20, 20])[0]
            messages += exchange(rng, held, False, tools, k, whole=True)[0]
    turn, check = exchange(rng, held, think, tools, final, whole=False)
    return {"messages": messages + turn, "tools": [definition(rng, t) for t in tools], "think": think, "kind": final, "check": check}


def exchange(rng, held, think, tools, kind, whole):
    """One user query and what follows it. `whole` plays it to the final answer, otherwise it stops where `kind` says."""
    if kind == "no call needed":
        _, q, r, a, check = question(rng, held, think)
        return [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning_content": r}], check
    many = kind.startswith("parallel") or (kind == "answer from result" and rng.random() < 0.15)
    requests = []
    if many:
        n = rng.choice([2, 2, 2, 3])
        tool = rng.choice(tools) if rng.random() < 0.5 else None
        requests = []
        for _ in range(n):
            t = tool or rng.choice(tools)
            requests.append((t, *call(rng, t)))
        if rng.random() < 0.3 and tool and tool[2] and tool[3] and len(tool[2]) and tool[2][0][4] in ("city", "ticker", "path", "person"):
            p = tool[2][0]
            vs = [value(rng, p[4])[0] for _ in range(n)]
            text = rng.choice([x for x in tool[3] if "{" in x and x.count("{") == 1] or ["Use " + tool[0] + " for {" + p[0] + "}."])
            if "{" + p[0] + "}" in text and all(not q[3] or q[0] == p[0] for q in tool[2]):
                requests = [(tool, "", {p[0]: v}) for v in vs]
                query = text.format(**{p[0]: join(vs)})
            else:
                query = None
        else:
            query = None
        if query is None:
            texts = [q if q[-1] in ".?!\"" else q + "." for _, q, _ in requests]
            query = rng.choice([" ".join(texts), "\n".join(texts), " Then: ".join(texts), "Do all of this. " + " ".join(texts), " Also: ".join(texts)])
    else:
        t = rng.choice(tools)
        query, arguments = call(rng, t)
        requests = [(t, query, arguments)]
        query = vary(rng, query) if rng.random() < 0.3 else query
    calls = [(t[0], a) for t, _, a in requests]
    messages = [{"role": "user", "content": query}, calls_message(rng, calls, think)]
    if not whole and kind != "answer from result":
        return messages, {"type": "calls", "value": [{"name": n, "arguments": a} for n, a in calls]}
    results = [result(rng) for _ in calls]
    for c, (text, _, _) in zip(messages[1]["tool_calls"], results):
        messages.append({"role": "tool", "tool_call_id": c["id"], "content": text})
    answer = results[0][1] if len(results) == 1 else "\n".join(f"{i}. {s}" for i, (_, s, _) in enumerate(results, 1))
    messages.append({"role": "assistant", "content": answer, "reasoning_content": "I have the result." if len(results) == 1 else f"I have {len(results)} results."})
    return messages, {"type": "exact", "value": answer}
