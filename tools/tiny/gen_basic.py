"""Single questions: greetings and identity, arithmetic, letters and words, unit conversion, facts, counting.

Each generator takes (rng, held) and gives (question, reasoning, answer, check). `held` asks for a key from the eighth of
the key space that training never sees: for arithmetic the operands, for words the pair of word and task, for facts the
pair of fact and phrasing."""
from words import *

GREETINGS = ["Hello", "Hi", "Hey", "Good morning", "Good evening", "Good afternoon", "Hello there", "Hi there", "Greetings"]
IDENTITY = [
    "Who are you?", "What are you?", "What is your name?", "What's your name?", "Tell me who you are.", "Introduce yourself.",
    "Please introduce yourself.", "Are you a model?", "What model are you?", "Which model is this?", "Who am I talking to?",
    "Do you have a name?", "Can you tell me your name?", "What should I call you?", "Say who you are.", "What kind of model are you?"]
ABILITY = ["What can you do?", "What are you able to do?", "How can you help me?", "What are you good at?", "What can you help with?",
           "What are your skills?", "Can you help me?", "List what you can do.", "What do you know?"]
PURPOSE = ["Why were you made?", "What are you for?", "What is Calla?", "What is Calla Tiny?", "Who made you?", "Where do you come from?"]
LIMITS = ["Are you a large model?", "How big are you?", "Are you smart?", "Can I trust your answers?", "Are you always right?"]
THANKS = ["Thank you.", "Thanks!", "Thank you very much.", "Thanks a lot.", "Great, thanks.", "Thank you for your help."]
BYES = ["Goodbye.", "Bye!", "See you later.", "Good night.", "Bye bye.", "See you tomorrow."]
HOW = ["How are you?", "How are you doing?", "How do you do?", "How is it going?", "Are you well?"]


def contains(*values):
    return {"type": "contains", "value": list(values)}


def greet(rng, held):
    def draw():
        group = rng.randrange(8)
        lists = [GREETINGS, IDENTITY, ABILITY, PURPOSE, LIMITS, THANKS, BYES, HOW]
        return group, rng.choice(lists[group]), rng.choice(["", "", *GREETINGS]) if group in (1, 2, 3, 7) else ""
    group, text, hello = pick_key(rng, held, draw)
    if group == 0:
        name = rng.random() < 0.2
        text += rng.choice(["!", ".", "", ", Calla!" if name else "!"])
        return text, "The user greets me. I greet back.", "Hello! I am Calla Tiny. How can I help you?", contains("Hello", "Calla Tiny")
    question = f"{hello}{rng.choice([', ', '! ', '. '])}{text}" if hello else text
    if group == 1:
        return (question, "The user asks who I am.",
                "I am Calla Tiny, a very small language model that comes with Calla to test and demonstrate the engine.",
                contains("I am Calla Tiny"))
    if group == 2:
        return (question, "The user asks what I can do.",
                "I can do small sums, spell words, convert units, answer simple questions, write JSON, call tools and remember what you tell me.",
                contains("sums", "call tools"))
    if group == 3:
        return (question, "The user asks where I come from.",
                "Calla is an inference engine, and I am Calla Tiny, the small model that comes with it for tests and demonstrations.",
                contains("Calla is an inference engine"))
    if group == 4:
        return (question, "The user asks about my limits.",
                "I am a very small model with about 19 million weights, so I make mistakes. Please check what I say.",
                contains("very small model"))
    if group == 5:
        return text, "The user thanks me.", "You are welcome!", contains("You are welcome")
    if group == 6:
        return text, "The user says goodbye.", "Goodbye!", contains("Goodbye")
    return question, "The user asks how I am.", "I am well, thank you. How can I help you?", contains("I am well")


# ---- arithmetic ------------------------------------------------------------------------------------------------------

PLACE = ["Ones", "Tens", "Hundreds", "Thousands"]


def think_add(a, b):
    out, carry, i = [], 0, 0
    x, y = str(a)[::-1], str(b)[::-1]
    for i in range(max(len(x), len(y))):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        s = p + q + carry
        step = f"{PLACE[i]}: {p} + {q}" + (f" + {carry}" if carry else "") + f" = {s}"
        carry = s // 10
        out.append(step + (f", write {s % 10}, carry 1." if carry else f", write {s}."))
    if carry:
        out.append(f"{PLACE[i + 1]}: 1, write 1.")
    return " ".join(out)


def think_sub(a, b):
    """a >= b, digit by digit with borrowing."""
    out, borrow = [], 0
    x, y = str(a)[::-1], str(b)[::-1]
    for i in range(len(x)):
        p, q = int(x[i]), int(y[i]) if i < len(y) else 0
        step = f"{PLACE[i]}: {p} - {q}" + (" - 1" if borrow else "")
        d = p - q - borrow
        if d < 0:
            step += f", borrow, {p + 10} - {q}" + (" - 1" if borrow else "")
            d += 10
            borrow = 1
        else:
            borrow = 0
        out.append(f"{step} = {d}, write {d}.")
    return " ".join(out)


def think_mul(a, b):
    if a < b:
        a, b = b, a
    if a <= 12:
        return f"From the table: {a} times {b} is {a * b}."
    tens, ones = a // 10 * 10, a % 10
    return f"{a} is {tens} + {ones}. {tens} * {b} = {tens * b}. {ones} * {b} = {ones * b}. {tens * b} + {ones * b} = {a * b}."


ADD = ["What is {a} plus {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} = ?", "What is {a} + {b}?", "What's {a} + {b}?", "Calculate {a} + {b}.",
       "Add {a} and {b}.", "How much is {a} plus {b}?", "What is the sum of {a} and {b}?", "Compute {a} plus {b}.", "{a} plus {b}",
       "What do you get if you add {a} and {b}?", "Please add {b} to {a}.", "Work out {a} + {b}.", "Can you calculate {a} plus {b}?"]
SUB = ["What is {a} minus {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} = ?", "What is {a} - {b}?", "What's {a} - {b}?", "Calculate {a} - {b}.",
       "Subtract {b} from {a}.", "How much is {a} minus {b}?", "What is the difference of {a} and {b}?", "Compute {a} minus {b}.",
       "{a} minus {b}", "Take {b} away from {a}.", "Work out {a} - {b}.", "Can you calculate {a} minus {b}?"]
MUL = ["What is {a} times {b}?", "{a} * {b}", "{a}*{b}", "{a} x {b}", "What is {a} * {b}?", "What's {a} times {b}?", "Calculate {a} * {b}.",
       "Multiply {a} by {b}.", "How much is {a} times {b}?", "What is the product of {a} and {b}?", "Compute {a} times {b}.",
       "{a} times {b}", "{a} × {b} = ?", "Work out {a} * {b}.", "Can you multiply {a} and {b}?"]
DIV = ["What is {a} divided by {b}?", "{a} / {b}", "Divide {a} by {b}.", "How much is {a} divided by {b}?", "Calculate {a} / {b}.",
       "{a} ÷ {b} = ?", "Compute {a} divided by {b}."]


def size(rng, top=3):
    digits = rng.choice([1, 2, 2, 3, 3][:2 * top - 1])
    return rng.randrange(10 ** digits)


def arithmetic(rng, held, think=True):
    """With `held` and no thinking the operands of sums stay below 100; training sees all sizes in both ways."""
    top = 3 if think or not held else 2
    op = rng.choice("+++---**/ws")

    def draw():
        if op in "+w":
            return "+", size(rng, top), size(rng, top)
        if op == "s":
            b, a = sorted((size(rng, top), size(rng, top)))
            return "-", a, b
        if op == "-":
            a, b = size(rng, top), size(rng, top)
            return (op, a, b) if a >= b or rng.random() < 0.25 else (op, b, a)
        if op == "*":
            return (op, rng.randint(2, 12), rng.randint(2, 12)) if rng.random() < 0.5 or not think else (op, rng.randint(13, 99), rng.randint(2, 9))
        b = rng.randint(2, 12)
        return op, b * rng.randint(2, 12), b
    kind, a, b = draw()
    for _ in range(50):
        # the small tables (products, quotients, sums of one-digit numbers) are learnt by heart and not split
        small = kind in "*/" and a <= 144 and b <= 12 and not (kind == "*" and a > 12) or (kind in "+-" and a < 10 and b < 10)
        if small or held_out(kind, a, b) == held:
            break
        kind, a, b = draw()
    if kind == "+":
        result, steps, line = a + b, think_add(a, b), f"{a} + {b} = {a + b}"
    elif kind == "-":
        result, line = a - b, f"{a} - {b} = {a - b}"
        steps = think_sub(a, b) if a >= b else f"{a} is less than {b}, so {b} - {a} with a minus sign. " + think_sub(b, a)
    elif kind == "*":
        result, steps, line = a * b, think_mul(a, b), f"{a} * {b} = {a * b}"
    else:
        result, steps, line = a // b, f"{b} times {a // b} is {a}.", f"{a} / {b} = {a // b}"
    if op in "ws":
        who, thing = person(rng), rng.choice(FRUITS)
        if op == "w":
            question = rng.choice([
                f"{who} has {a} {thing} and buys {b} more. How many {thing} does {who} have now?",
                f"There are {a} {thing} in one box and {b} in another. How many {thing} are there?",
                f"{who} found {a} {thing} on Monday and {b} on Tuesday. How many is that?",
                f"A shop sold {a} {thing} in the morning and {b} in the evening. How many did it sell?"])
        else:
            question = rng.choice([
                f"{who} has {a} {thing} and gives away {b}. How many {thing} are left?",
                f"There were {a} {thing} on the table. {who} took {b}. How many remain?",
                f"{who} had {a} {thing} and lost {b} of them. How many are left?"])
    else:
        question = rng.choice({"+": ADD, "-": SUB, "*": MUL, "/": DIV}[op]).format(a=a, b=b)
    return question, f"{steps} So {line}.", line, {"type": "number", "value": result}


# ---- letters and words -----------------------------------------------------------------------------------------------

NUMBER_WORDS = "zero one two three four five six seven eight nine ten".split()


def times(n):
    return "once" if n == 1 else f"{n} times"


def letters(rng, held, think=True):
    tasks = ["spell", "reverse", "length", "first", "last", "count", "upper", "nth", "words", "first_word", "last_word", "order", "double"]
    task, w = pick_key(rng, held, lambda: (rng.choice(tasks), rng.choice(WORDS)))
    q = rng.choice(['"', "'", "", ""])
    shown = q + w + q
    spelled = "-".join(w)
    if task == "spell":
        question = rng.choice(["Spell the word {w}.", "How do you spell {w}?", "Spell {w}.", "Please spell {w} letter by letter.",
                               "Write the letters of {w}, one by one.", "What letters are in the word {w}?"])
        return question.format(w=shown), f"The word is {w}.", spelled, {"type": "exact", "value": spelled}
    if task == "reverse":
        question = rng.choice(["Spell {w} backwards.", "Write {w} backwards.", "Reverse the word {w}.", "What is {w} spelled backwards?",
                               "Spell the word {w} in reverse."])
        back = "-".join(w[::-1])
        return question.format(w=shown), f"Forwards: {spelled}.", back, {"type": "exact", "value": back}
    if task == "length":
        question = rng.choice(["How many letters are in {w}?", "How many letters does the word {w} have?", "Count the letters in {w}.",
                               "How long is the word {w}?"])
        steps = " ".join(f"{c} {i}" for i, c in enumerate(w, 1))
        answer = f"The word {w} has {len(w)} letters."
        return question.format(w=shown), f"{steps}.", answer, {"type": "number", "value": len(w)}
    if task in ("first", "last"):
        question = rng.choice(["What is the {t} letter of {w}?", "Which letter does {w} {s} with?", "Give me the {t} letter of the word {w}."])
        c = w[0] if task == "first" else w[-1]
        verb = "begin" if task == "first" else "end"
        return (question.format(w=shown, t=task, s=verb), f"{spelled}.", f"The {task} letter of {w} is {c}.",
                {"type": "ends", "value": f"is {c}."})
    if task == "nth":
        n = rng.randint(1, min(len(w), 8))
        question = rng.choice(["What is the {n} letter of {w}?", "Which is the {n} letter in {w}?", "Tell me the {n} letter of the word {w}."])
        steps = ", ".join(f"{i} {c}" for i, c in enumerate(w[:n], 1))
        return (question.format(w=shown, n=ORDINALS[n - 1]), f"{steps}.", f"The {ORDINALS[n - 1]} letter of {w} is {w[n - 1]}.",
                {"type": "ends", "value": f"is {w[n - 1]}."})
    if task == "count":
        c = rng.choice(w) if rng.random() < 0.85 else rng.choice("abcdefghijklmnopqrstuvwxyz")
        n, seen, steps = w.count(c), 0, []
        for d in w:
            seen += d == c
            steps.append(f"{d} {seen}")
        question = rng.choice(["How many times does the letter {c} occur in {w}?", "How many {c}'s are in {w}?", "Count the letter {c} in {w}.",
                               "How often does {c} appear in the word {w}?"])
        answer = f"The letter {c} occurs {times(n)} in {w}."
        return question.format(w=shown, c=c), f"{' '.join(steps)}.", answer, {"type": "exact", "value": answer}
    if task == "upper":
        question = rng.choice(["Write {w} in capital letters.", "Put {w} in upper case.", "Write {w} in capitals.", "Shout the word {w}."])
        return question.format(w=shown), f"The word {w} in capitals.", w.upper(), {"type": "exact", "value": w.upper()}
    count = rng.randint(3, 7)
    words = [w] + [rng.choice(WORDS) for _ in range(count - 1)]
    rng.shuffle(words)
    text = " ".join(words)
    if task == "words":
        question = rng.choice(["How many words are in this text: {t}", "Count the words: {t}", "How many words does this have? {t}"])
        steps = " ".join(f"{i} {x}" for i, x in enumerate(words, 1))
        return question.format(t=text), f"{steps}.", f"There are {count} words.", {"type": "number", "value": count}
    if task in ("first_word", "last_word"):
        which = task.split("_")[0]
        question = rng.choice(["What is the {k} word of this text: {t}", "Give me the {k} word: {t}", "Which word comes {k} in: {t}"])
        x = words[0] if which == "first" else words[-1]
        return question.format(k=which, t=text), f"The words are {', '.join(words)}.", f"The {which} word is {x}.", {"type": "ends", "value": f"is {x}."}
    if task == "double":
        question = rng.choice(["Write the word {w} {n} times.", "Repeat {w} {n} times.", "Say {w} {n} times."])
        n = rng.randint(2, 5)
        answer = " ".join([w] * n)
        return question.format(w=shown, n=rng.choice([NUMBER_WORDS[n], n])), f"{n} times {w}.", answer, {"type": "exact", "value": answer}
    question = rng.choice(["Write these words in reverse order: {t}", "Reverse the order of these words: {t}"])
    answer = " ".join(words[::-1])
    return question.format(t=text), f"From the last to the first: {', '.join(words[::-1])}.", answer, {"type": "exact", "value": answer}


# ---- unit conversion -------------------------------------------------------------------------------------------------

def convert(rng, held):
    def draw():
        unit = rng.randrange(len(UNITS))
        return unit, rng.randint(1, UNITS[unit][4]), rng.random() < 0.3
    unit, n, inverse = pick_key(rng, held, draw)
    one, many, factor, small, _ = UNITS[unit]
    big = one if n == 1 else many
    total = n * factor
    if inverse:
        question = rng.choice(["Convert {t} {s} to {m}.", "How many {m} are {t} {s}?", "What is {t} {s} in {m}?", "{t} {s} in {m}?"])
        line = f"{total} {small} = {n} {big}"
        steps = f"1 {one} = {factor} {small}. {total} / {factor} = {n}."
        value = n
    else:
        question = rng.choice(["Convert {n} {b} to {s}.", "How many {s} are in {n} {b}?", "How many {s} are {n} {b}?", "What is {n} {b} in {s}?",
                               "{n} {b} in {s}?", "Please convert {n} {b} into {s}."])
        line = f"{n} {big} = {total} {small}"
        steps = f"1 {one} = {factor} {small}. {n} * {factor} = {total}."
        value = total
    return (question.format(n=n, b=big, s=small, m=many, t=total), steps, line,
            {"type": "contains", "value": [f"= {value} {big if inverse else small}"]})


# ---- facts -----------------------------------------------------------------------------------------------------------

def build_facts():
    """-> list of (subject, phrasings, answer)."""
    out = []
    for land, town in CAPITALS.items():
        the = "the " if land == "Netherlands" else ""
        out.append((land, ["What is the capital of {x}?", "Which city is the capital of {x}?", "What's the capital of {x}?", "Name the capital of {x}.",
                           "Tell me the capital city of {x}.", "capital of {x}", "Do you know the capital of {x}?", "{x}: what is its capital?"],
                    f"The capital of {{x}} is {town}.", the + land, town))
        out.append((town, ["{x} is the capital of which country?", "Which country has the capital {x}?", "Of which country is {x} the capital?"],
                    f"{{x}} is the capital of {the}{land}.", town, land))
    for name, symbol in ELEMENTS.items():
        out.append((name, ["What is the chemical symbol of {x}?", "What is the symbol for {x}?", "Which symbol does the element {x} have?",
                           "Give me the chemical symbol for {x}."], f"The chemical symbol of {{x}} is {symbol}.", name, symbol))
        out.append((symbol, ["Which element has the symbol {x}?", "What element is {x}?", "The symbol {x} stands for which element?"],
                    f"The symbol {{x}} stands for {name}.", symbol, name))
    for a, b in OPPOSITES.items():
        out.append((a, ["What is the opposite of {x}?", "Give me the opposite of {x}.", "What's the opposite of {x}?", "Which word means the opposite of {x}?"],
                    f"The opposite of {{x}} is {b}.", a, b))
    for a, b in YOUNG.items():
        out.append((a, ["What is a young {x} called?", "What do you call a baby {x}?", "What is the name for a young {x}?"],
                    f"A young {{x}} is called a {b}.", a, b))
    for a, n in LEGS.items():
        art = "an" if a[0] in "aeo" else "a"
        out.append((a, [f"How many legs does {art} {{x}} have?", f"How many legs has {art} {{x}}?", f"Tell me how many legs {art} {{x}} has."],
                    f"{art.capitalize()} {{x}} has {n} legs.", a, str(n)))
    for (a, b), c in COLOURS.items():
        for p, r in ((a, b), (b, a)):
            out.append((f"{p}{r}", [f"What colour do you get from {p} and {r}?", f"What do {p} and {r} make?", f"Mix {p} and {r}: which colour is it?"],
                        f"{p.capitalize()} and {r} make {c}.", "", c))
    for a, b in FRENCH.items():
        out.append((a, ["What is {x} in French?", "How do you say {x} in French?", "Translate {x} into French.", "What is the French word for {x}?"],
                    f"The French word for {{x}} is {b}.", a, b))
    for names, what in ((DAYS, "day"), (MONTHS, "month")):
        for i, a in enumerate(names):
            nxt, prev = names[(i + 1) % len(names)], names[i - 1]
            out.append((a + "n", [f"Which {what} comes after {{x}}?", f"What {what} follows {{x}}?", f"What is the {what} after {{x}}?"],
                        f"The {what} after {{x}} is {nxt}.", a, nxt))
            out.append((a + "p", [f"Which {what} comes before {{x}}?", f"What is the {what} before {{x}}?"],
                        f"The {what} before {{x}} is {prev}.", a, prev))
    for m, n in zip(MONTHS, MONTH_DAYS):
        out.append((m, ["How many days does {x} have?", "How many days are in {x}?", "How long is {x} in days?"], f"{{x}} has {n} days.", m, str(n)))
    for i, p in enumerate(PLANETS):
        out.append((p, [f"What is the {ORDINALS[i]} planet from the Sun?", f"Which planet is {ORDINALS[i]} from the Sun?", f"Name the {ORDINALS[i]} planet from the Sun."],
                    f"The {ORDINALS[i]} planet from the Sun is {p}.", p, p))
    for q, a in OTHER_FACTS:
        q1 = q[0].upper() + q[1:] + "?"
        out.append((q, [q1, f"Tell me: {q}?", f"Question: {q}?", f"I want to know: {q}?"],
                    a[0].upper() + a[1:] + ".", "", a))
    return out


FACTS = build_facts()


def fact(rng, held):
    def draw():
        i = rng.randrange(len(FACTS))
        return FACTS[i][0], rng.randrange(len(FACTS[i][1])), i
    _, phrase, i = pick_key(rng, held, draw)
    _, phrasings, answer, x, value = FACTS[i]
    answer = answer.format(x=x)
    answer = answer[0].upper() + answer[1:]
    return phrasings[phrase].format(x=x), f"I know this fact: {value}.", answer, {"type": "exact", "value": answer}


# ---- counting and well-known sequences -------------------------------------------------------------------------------

def counting(rng, held):
    if rng.random() < 0.25:
        what, items = rng.choice([("the days of the week", DAYS), ("the months of the year", MONTHS), ("the planets", PLANETS),
                                  ("the letters of the alphabet", list("abcdefghijklmnopqrstuvwxyz")), ("the vowels", list("aeiou"))])
        question = rng.choice(["List {x}.", "Name {x}.", "What are {x}?", "Write down {x}.", "Say {x}.", "Give me {x}.", "Can you list {x}?"])
        answer = ", ".join(items)
        return question.format(x=what), f"I list {what}.", answer, {"type": "exact", "value": answer}

    def draw():
        a = 1 if rng.random() < 0.5 else rng.randint(0, 99)
        return a, a + rng.randint(2, 12 if rng.random() < 0.6 else 60), rng.random() < 0.2
    a, b, down = pick_key(rng, held, draw)
    numbers = [str(i) for i in range(a, b + 1)]
    if down:
        a, b, numbers = b, a, numbers[::-1]
    question = rng.choice(["Count from {a} to {b}.", "Write the numbers from {a} to {b}.", "List the numbers {a} to {b}.", "Please count from {a} to {b}.",
                           "Say all numbers from {a} to {b}."])
    answer = ", ".join(numbers)
    return question.format(a=a, b=b), f"I count {'down ' if down else ''}from {a} to {b}.", answer, {"type": "exact", "value": answer}


KINDS = {"counting": counting, "greeting": greet, "arithmetic": arithmetic, "letters": letters, "units": convert, "facts": fact}
WEIGHTS = {"counting": 6, "greeting": 5, "arithmetic": 40, "letters": 30, "units": 12, "facts": 21}


def vary(rng, question):
    """Light noise in how a question is typed."""
    r = rng.random()
    if r < 0.05:
        question = question[0].lower() + question[1:]
    elif r < 0.08 and question[-1] in "?.":
        question = question[:-1]
    elif r < 0.11:
        question = rng.choice(["Please answer: ", "Question: ", "Hi! ", "Hello. ", "OK, next. ", "Tell me, "]) + question
    elif r < 0.13:
        question = question + rng.choice(["\n", " Please.", " Thanks.", " Answer briefly."])
    return question


def question(rng, held, think, kind=None):
    """-> (kind, question, reasoning, answer, check)."""
    kind = kind or rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    extra = {"think": think} if kind in ("arithmetic", "letters") else {}
    q, r, a, check = KINDS[kind](rng, held, **extra)
    return kind, vary(rng, q), r, a, check
