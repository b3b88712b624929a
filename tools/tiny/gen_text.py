"""JSON answers, recall of facts given earlier, copying and prose; and `conversation`, the mixture of all kinds.

Prose paragraphs are handed in by `set_prose`; without them recall fills its gaps with made sentences only."""
import json

from gen_basic import FACTS, NUMBER_WORDS, contains, question
from gen_tools import SYSTEMS, tool_conversation, value
from words import *

PROSE = []


def set_prose(paragraphs, held):
    """Held-out prompts use every twelfth paragraph, training the others."""
    PROSE[:] = [p for i, p in enumerate(paragraphs) if (i % 12 == 0) == held]


def filler(rng, size):
    """Running text of about `size` characters."""
    out, n = [], 0
    prose = PROSE and rng.random() < 0.75
    while n < size:
        s = rng.choice(PROSE) if prose else sentence(rng)
        if len(s) > size - n + 200:
            s = s[:max(size - n, 60)].rsplit(" ", 1)[0] + "."
        out.append(s)
        n += len(s) + 1
    return out


# ---- JSON ------------------------------------------------------------------------------------------------------------

def json_task(rng, held, think):
    """-> (system or None, question, reasoning, answer, check)"""
    r = rng.random()
    ask = rng.choice(["Reply in JSON with the keys {k}.", "Answer in JSON with the keys {k}.", "Give me JSON with the keys {k}.", "Return a JSON object with the keys {k}.",
                      "Write this as JSON with the keys {k}.", "Extract {k} as JSON.", "Respond only with JSON. Keys: {k}.", "Make a JSON object of it. Keys: {k}."])
    system = None
    if r < 0.30:  # people described in a sentence
        facts = []
        name, age, town, job = person(rng), rng.randint(1, 99), city(rng), rng.choice("doctor teacher farmer sailor soldier artist writer singer dancer painter baker nurse pilot cook".split())
        facts = [("name", name), ("age", age), ("city", town), ("job", job)]
        art = "an" if job[0] in "aeiou" else "a"
        text = rng.choice([f"{name} is {age} years old, lives in {town} and works as {art} {job}.", f"{name} is {art} {job} from {town}, aged {age}.",
                           f"In {town} lives {name}, {art} {job} of {age} years.", f"{name}, {age}, is {art} {job} in {town}."])
        keys = rng.sample(range(4), rng.randint(1, 4))
        obj = {facts[k][0]: facts[k][1] for k in keys}
        ask = ask.format(k=join(list(obj)))
        q = rng.choice([f"{ask} {text}", f"{text} {ask}", f"{text}\n{ask}", f"{ask}\n\n{text}"])
    elif r < 0.62:  # random keys and values
        obj = {}
        for _ in range(rng.randint(1, 5)):
            k = rng.choice([rng.choice(WORDS), rng.choice(NOUNS), made_up(rng), rng.choice(WORDS) + "_" + rng.choice(NOUNS)])
            obj[k] = value(rng, rng.choice(["word", "made", "number", "small", "float", "bool", "code", "person", "city", "phrase", "ints", "strings"]))[0]
            if isinstance(obj[k], str) and obj[k][0].isdigit():
                obj[k] = made_up(rng)  # '123' would look like a number
        shown = {k: v if isinstance(v, str) else json.dumps(v) for k, v in obj.items()}
        form = rng.choice(["{k} is {v}", "{k}: {v}", "{k} = {v}", "the {k} is {v}"])
        text = rng.choice([", ", "; ", "\n"]).join(form.format(k=k, v=v) for k, v in shown.items())
        ask = rng.choice(["Write this as JSON: {t}", "Turn this into a JSON object: {t}", "Convert to JSON:\n{t}", "{t}\nGive this as JSON.", "JSON please: {t}", "Reply in JSON. {t}",
                          "Reply in JSON with the keys {k}. {t}", "Return a JSON object with the keys {k}: {t}", "{t}\nAnswer in JSON with the keys {k}."])
        q = ask.format(t=text, k=join(list(obj)))
    elif r < 0.75:  # lists
        items = [rng.choice([rng.choice(WORDS), person(rng), made_up(rng), rng.randint(0, 99)]) for _ in range(rng.randint(2, 6))]
        text = rng.choice([join(map(str, items)), ", ".join(map(str, items))])
        obj = items
        q = rng.choice(["Make a JSON array of: {t}", "Write these as a JSON array: {t}", "Give me a JSON list of {t}.", "Put {t} into a JSON array."]).format(t=text)
        if rng.random() < 0.4:
            key = rng.choice(WORDS)
            obj = {key: items}
            q = f"Reply in JSON with the key {key}, an array of: {text}"
    elif r < 0.88:  # a sum in JSON
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        for _ in range(50):
            if held_out("+", a, b) == held:
                break
            a, b = rng.randint(0, 99), rng.randint(0, 99)
        key = rng.choice(["answer", "result", "sum", "value", "total", made_up(rng)])
        obj = {key: a + b}
        q = rng.choice([f"What is {a} plus {b}? Reply in JSON with the key {key}.", f"Add {a} and {b}. Answer in JSON with the key {key}.",
                        f"Reply in JSON with the key {key}: {a} + {b}", f"Return a JSON object with the key {key}. What is {a} + {b}?"])
    else:  # a capital in JSON
        land = rng.choice(list(CAPITALS))
        town = CAPITALS[land]
        style = rng.randrange(3)
        if style == 0:
            obj, q = {"answer": town}, f"What is the capital of {land}?"
            system = rng.choice(["Always answer in JSON with the key answer.", "Reply in JSON with the key answer.", "Respond only with JSON. Keys: answer."])
        else:
            key = rng.choice(["capital", "city", "answer", made_up(rng)])
            obj = {"country": land, key: town} if style == 2 else {key: town}
            q = f"What is the capital of {land}? Reply in JSON with the keys {join(list(obj))}."
    names = join(list(obj)) if isinstance(obj, dict) else "an array"
    return system, q, f"The answer is JSON: {names}.", json.dumps(obj, ensure_ascii=False), {"type": "json", "value": obj}


def json_conversation(rng, held, think):
    system, q, r, a, check = json_task(rng, held, think)
    messages = [{"role": "system", "content": system or rng.choice(SYSTEMS)}] if system or rng.random() < 0.15 else []
    if not system:
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            s, q0, _, a0, _ = json_task(rng, held, False)
            if not s:
                messages += [{"role": "user", "content": q0}, {"role": "assistant", "content": a0}]
    messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning_content": r}]
    return {"messages": messages, "think": think, "kind": "json", "check": check}


# ---- recall ----------------------------------------------------------------------------------------------------------

def memory(rng):
    """-> (statement, [questions], answer, key): key tells memories apart."""
    k = rng.randrange(8)
    if k <= 1:
        what = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
        noun = rng.choice("code number password key secret name".split())
        v = code(rng) if rng.random() < 0.7 else made_up(rng)
        return (rng.choice([f"The {noun} of the {what} is {v}.", f"Remember: the {noun} of the {what} is {v}.", f"Note that the {noun} of the {what} is {v}."]),
                [f"What is the {noun} of the {what}?", f"Tell me the {noun} of the {what}.", f"What was the {noun} of the {what}?", f"Which {noun} does the {what} have?"],
                f"The {noun} of the {what} is {v}.", what)
    if k == 2:
        who, kind = person(rng), rng.choice("colour animal fruit city number song book drink game word".split())
        v = {"city": city(rng), "number": str(rng.randint(1, 999))}.get(kind) or rng.choice(WORDS)
        return (f"{who}'s favourite {kind} is {v}.", [f"What is {who}'s favourite {kind}?", f"Which {kind} does {who} like best?"],
                f"{who}'s favourite {kind} is {v}.", who + kind)
    if k == 3:
        what, where = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}", rng.choice(PLACES)
        where = f"{rng.choice(ADJECTIVES)} {where}" if rng.random() < 0.5 else where
        return (rng.choice([f"The {what} is in the {where}.", f"I put the {what} in the {where}, so it is in the {where}.", f"Remember that the {what} is in the {where}."]),
                [f"Where is the {what}?", f"Where can I find the {what}?", f"Where did I put the {what}?"], f"The {what} is in the {where}.", what)
    if k == 4:
        name = person(rng)
        return rng.choice([f"My name is {name}.", f"I am called {name}.", f"By the way, my name is {name}."]), ["What is my name?", "Do you remember my name?", "Who am I?", "What am I called?"], f"Your name is {name}.", "name"
    if k == 5:
        kind = rng.choice([("I live in {v}.", ["Where do I live?", "Which city do I live in?"], "You live in {v}.", city(rng), "live"),
                           ("I am {v} years old.", ["How old am I?", "What is my age?"], "You are {v} years old.", str(rng.randint(5, 99)), "age"),
                           ("My favourite colour is {v}.", ["What is my favourite colour?", "Which colour do I like best?"], "Your favourite colour is {v}.", rng.choice("red blue green yellow purple orange black white pink grey".split()), "colour"),
                           ("My phone number is {v}.", ["What is my phone number?", "Tell me my phone number."], "Your phone number is {v}.", str(rng.randint(10000, 9999999)), "phone"),
                           ("My dog is called {v}.", ["What is my dog called?", "What is the name of my dog?"], "Your dog is called {v}.", person(rng), "dog"),
                           ("My cat is called {v}.", ["What is my cat called?", "What is the name of my cat?"], "Your cat is called {v}.", person(rng), "cat"),
                           ("My job is {v}.", ["What is my job?", "What do I do for a living?"], "Your job is {v}.", rng.choice(WORDS), "job")])
        form, qs, ans, v, key = kind
        return form.format(v=v), qs, ans.format(v=v), key
    if k == 6:
        who, what = person(rng), rng.choice(NOUNS)
        v = rng.choice([made_up(rng), rng.choice(ADJECTIVES), code(rng)])
        return f"{who} has a {what} called {v}.", [f"What is {who}'s {what} called?", f"What does {who} call the {what}?"], f"{who}'s {what} is called {v}.", who + what
    a, v = made_up(rng), rng.choice([made_up(rng), rng.choice(WORDS), code(rng)])
    return (rng.choice([f"The word {a} means {v}.", f"{a} means {v}.", f"In this game {a} means {v}."]),
            [f"What does {a} mean?", f"What is the meaning of {a}?", f"What does the word {a} mean?"], f"The word {a} means {v}.", a)


ACKS = ["I will remember that.", "Noted.", "OK."]


def recall(rng, held, think, length=None):
    """Facts at random depth in filler, then one or more questions. `length` in characters, about 3.6 a token."""
    if length is None:
        length = int(rng.choices([rng.uniform(0, 400), rng.uniform(400, 1800), rng.uniform(1800, 6000), rng.uniform(6000, 13500)], [50, 28, 14, 8])[0])
    count = rng.randint(1, 3 + min(length // 1500, 7))
    memories = {}
    for _ in range(count):
        m = memory(rng)
        memories.setdefault(m[3], m)
    memories = list(memories.values())
    messages = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    asked = rng.sample(memories, min(len(memories), rng.randint(1, 4)))
    questions = [(rng.choice(m[1]), m[2]) for m in asked]
    style = rng.random()
    if style < 0.45:  # one message: facts scattered in a text
        parts = filler(rng, length) if length > 60 else []
        for m in memories:
            parts.insert(rng.randint(0, len(parts)), m[0])
        text = rng.choice([" ", "\n", "\n\n"]).join(parts)
        q, a = questions[0]
        text = rng.choice([f"{text}\n\n{q}", f"{text}\n{q}", f"Read this text:\n{text}\n\nQuestion: {q}", f"{text} {q}", f"I will ask a question about this text.\n\n{text}\n\n{q}"])
        turns, rest = [(text, a)], questions[1:]
    else:  # facts told over several turns, with other talk between them
        turns, rest = [], questions
        slots = [("fact", m) for m in memories]
        n = 0
        while n < length:
            if rng.random() < 0.5:
                _, q, _, a, _ = question(rng, held, False)
                slots.append(("talk", (q, a)))
                n += len(q) + len(a) + 60
            else:
                f = " ".join(filler(rng, min(rng.randint(80, 1500), length - n + 60)))
                slots.append(("talk", (rng.choice(["Read this: ", "Here is a text: ", "Please read: "]) + f, "I have read it.")))
                n += len(f) + 80
        rng.shuffle(slots)
        ack = rng.choice(ACKS)
        for what, x in slots:
            turns.append((x[0], ack) if what == "fact" else x)
    turns += rest
    for q, a in turns[:-1]:
        messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    q, a = turns[-1]
    messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning_content": "I was told this before."}]
    return {"messages": messages, "think": think, "kind": "recall", "check": {"type": "exact", "value": a}}


# ---- copying ---------------------------------------------------------------------------------------------------------

def copy_task(rng):
    """-> (question, reasoning, answer)"""
    r = rng.random()
    if r < 0.4:
        n = rng.randint(1, 8)
        text = " ".join(rng.choice([rng.choice(WORDS), made_up(rng), code(rng), person(rng), str(rng.randint(0, 999))]) for _ in range(n))
    elif r < 0.6:
        text = sentence(rng)
    elif r < 0.75 and PROSE:
        text = rng.choice(PROSE)[:rng.randint(60, 300)].rsplit(" ", 1)[0]
    else:
        text = rng.choice(["ä ö ü ß", "naïve café", "東京 大阪", "π ≈ 3.14", "→ ←", "Привет мир", "😀 🎉", "1 + 1 = 2", "x_1 = {y: [2, 3]}", "a\nb\nc", "#include <stdio.h>", "for (i = 0; i < n; i++)"]) + " " + rng.choice(WORDS)
    q = rng.choice(["Repeat after me: {t}", "Repeat exactly: {t}", "Say: {t}", "Copy this text: {t}", "Write exactly this: {t}", "Echo: {t}", "Please repeat: {t}", "Say \"{t}\"."])
    return q.format(t=text), "I repeat the text.", text


def copying(rng, held, think):
    q, r, a = copy_task(rng)
    return {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning_content": r}], "think": think,
            "kind": "copying", "check": {"type": "exact", "value": a.strip()}}


# ---- everything ------------------------------------------------------------------------------------------------------

def simple(rng, held, think, kind=None):
    """One to five independent questions in one conversation; the last is of the wanted kind."""
    messages = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.2 else []
    for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2, 4])):
        r = rng.random()
        if r < 0.8:
            _, q, _, a, _ = question(rng, held, False)
        elif r < 0.9:
            q, _, a = copy_task(rng)
        else:
            s, q, _, a, _ = json_task(rng, held, False)
            if s:
                continue
        messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    kind, q, r, a, check = question(rng, held, think, kind)
    messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning_content": r}]
    return {"messages": messages, "think": think, "kind": kind, "check": check}


def prose(rng):
    """Raw prose, as a base model would see it."""
    i = rng.randrange(len(PROSE) - 12)
    text = "\n\n".join(PROSE[i:i + 12])
    return {"text": text[:rng.randint(400, 2400)], "kind": "prose"}


def story(rng, think):
    """A paragraph of prose on request."""
    ask = rng.choice(["Tell me a story.", "Write a story.", "Write a paragraph of prose.", "Tell me something.", "Write a short text.", "Tell me a short story, please.",
                      "Write something in the style of Jane Austen.", f"Write about {rng.choice(WORDS)}.", f"Tell me a story about {rng.choice(NAMES)}."])
    text = ""
    while len(text) < 200:
        text += ("\n\n" if text else "") + rng.choice(PROSE)
    return {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": text[:1200], "reasoning_content": "I write a short text."}],
            "think": think, "kind": "story", "check": None}


def conversation(rng, held=False):
    """One training example: a conversation of any kind, or {'text': ...} for prose."""
    r, think = rng.random(), rng.random() < 0.55
    if r < 0.50:
        return simple(rng, held, think)
    if r < 0.55:
        return copying(rng, held, think)
    if r < 0.64:
        return json_conversation(rng, held, think)
    if r < 0.71:
        return recall(rng, held, think)
    if r < 0.735 and PROSE:
        return prose(rng) if rng.random() < 0.8 else story(rng, think)
    return tool_conversation(rng, held, think)
