#!/usr/bin/env python3
"""Makes a preprocessed .metal file into C++.

The input has been through the C preprocessor, so kernels that macros stamp out are seen as any other; line markers
keep the places of the source. What Metal has and C++ has not is rewritten:

  kernel void f(device float *x [[buffer(0)]])   loses its attributes; they become an entry of a table at the end
  template [[host_name("f4")]] kernel ... f<4>   becomes such an entry
  constant bool b [[function_constant(3)]];      becomes a variable that the emulator sets before a dispatch
  threadgroup float x[64];                       in a kernel becomes memory that the emulator gives the threadgroup
  float4(                                        for --syntax, where vectors are clang's own: a function that makes one

What stays are the address spaces, which are macros for the compiler. Errors name file and line.
"""

import argparse
import re
import sys

POSITIONS = {
    "thread_position_in_grid", "threads_per_grid", "threadgroup_position_in_grid", "threadgroups_per_grid",
    "thread_position_in_threadgroup", "threads_per_threadgroup", "thread_index_in_threadgroup",
    "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup", "simdgroups_per_threadgroup",
    "threads_per_simdgroup", "thread_index_in_quadgroup", "quadgroup_index_in_threadgroup",
}  # fmt: skip
# Those that have one to three components, as many for all of a kernel's.
DIMENSIONS = {
    "THREAD_POSITION_IN_GRID", "THREADS_PER_GRID", "THREADGROUP_POSITION_IN_GRID", "THREADGROUPS_PER_GRID",
    "THREAD_POSITION_IN_THREADGROUP", "THREADS_PER_THREADGROUP",
}  # fmt: skip
SLOTS = 31
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\d[\w.]*|\[\[|\]\]|\S')
MARKER = re.compile(r'^#[ \t]+(\d+)[ \t]+"([^"]*)".*$', re.M)
VECTOR = re.compile(r"(?:bool|char|uchar|short|ushort|int|uint|long|ulong|half|bfloat|float)[234]")


class Token:
    __slots__ = ("text", "start", "end")

    def __init__(self, text, start, end):
        self.text, self.start, self.end = text, start, end

    def __repr__(self):
        return self.text


class Source:
    def __init__(self, text):
        self.text = text
        self.tokens = []
        self.edits = []
        at = 0
        for line in text.splitlines(keepends=True):
            if not line.lstrip().startswith("#"):  # line markers and pragmas
                for match in TOKEN.finditer(line):
                    self.tokens.append(Token(match[0], at + match.start(), at + match.end()))
            at += len(line)
        # `]]` also ends subscripts within subscripts: what does not close an attribute is two brackets.
        fixed, open_ = [], []
        for token in self.tokens:
            if token.text in ("[[", "["):
                open_.append(token.text)
            elif token.text == "]":
                if open_:
                    open_.pop()
            elif token.text == "]]":
                if open_ and open_[-1] == "[[":
                    open_.pop()
                else:
                    for i in range(2):
                        fixed.append(Token("]", token.start + i, token.start + i + 1))
                        if open_:
                            open_.pop()
                    continue
            fixed.append(token)
        self.tokens = fixed

    def place(self, position):
        """file and line of a position in the text."""
        file, line, at = "?", 0, 0
        for match in MARKER.finditer(self.text, 0, position):
            file, line, at = match[2], int(match[1]) - 1, match.end()
        return file, line + self.text.count("\n", at, position)

    def fail(self, token, message):
        file, line = self.place(token.start)
        sys.exit(f"{file}:{line}: error: {message}")

    def replace(self, start, end, text):
        # A replacement keeps the line breaks of what it replaces, so that lines stay lines.
        breaks = self.text.count("\n", start, end) - text.count("\n")
        self.edits.append((start, end, text + "\n" * max(0, breaks)))

    def result(self):
        out, at = [], 0
        for start, end, text in sorted(self.edits):
            assert start >= at, "overlapping edits"
            out += [self.text[at:start], text]
            at = end
        return "".join(out + [self.text[at:]])

    def match(self, index):
        """The index of the token that closes the bracket at `index`."""
        pairs = {"(": ")", "{": "}", "[": "]", "[[": "]]", "<": ">"}
        stack = []
        opening = self.tokens[index].text
        for i in range(index, len(self.tokens)):
            text = self.tokens[i].text
            if text in pairs and (text != "<" or opening == "<"):
                stack.append(pairs[text])
            elif stack and text == stack[-1]:
                stack.pop()
                if not stack:
                    return i
            elif text in (")", "}", "]") and opening != "<":
                break
        self.fail(self.tokens[index], f"no end of '{opening}'")

    def span(self, first, last):
        """The text of tokens first to last, without line markers in between."""
        text = self.text[self.tokens[first].start : self.tokens[last].end]
        return " ".join(line for line in text.splitlines() if not line.startswith("#"))


def integer(source, token, text):
    if not re.fullmatch(r"[\d\s()+*-]+", text):
        source.fail(token, f"'{text}' is not a number")
    return int(eval(text, {"__builtins__": {}}))  # noqa: S307 digits and operators only


def attributes(source, first, last):
    """[(name, argument text, token)] of the attributes among tokens first..last, and their spans."""
    found, spans, i = [], [], first
    while i <= last:
        if source.tokens[i].text == "[[":
            end = source.match(i)
            j = i + 1
            while j < end:
                name, token, argument = source.tokens[j].text, source.tokens[j], ""
                if j + 1 < end and source.tokens[j + 1].text == "(":
                    close = source.match(j + 1)
                    argument = source.span(j + 2, close - 1) if close > j + 2 else ""
                    j = close
                found.append((name, argument, token))
                j += 1
                if j < end and source.tokens[j].text == ",":
                    j += 1
            spans.append((i, end))
            i = end
        i += 1
    return found, spans


class Kernel:
    def __init__(self, name, token, place):
        self.name, self.token, self.place = name, token, place
        self.template = False
        self.parameters = []  # (name, kind, index, condition)
        self.dimensions = None  # of its positions
        self.max_threads = "0"
        self.required = ["0", "0", "0"]
        self.function = name


def parameter(source, first, last, kernel):
    found, spans = attributes(source, first, last)
    for start, end in spans:
        source.replace(source.tokens[start].start, source.tokens[end].end, "")
    names = [i for i in range(first, last + 1) if not any(a <= i <= b for a, b in spans)]
    name = next((source.tokens[i].text for i in reversed(names) if re.match(r"[A-Za-z_]", source.tokens[i].text)), "?")
    kind, index, condition = None, 0, None
    for attribute, argument, token in found:
        if attribute in ("buffer", "threadgroup"):
            kind, index = attribute.upper(), integer(source, token, argument)
            if index >= SLOTS:
                source.fail(token, f"'{name}': {attribute}({index}) is beyond the last slot, {SLOTS - 1}")
        elif attribute in POSITIONS:
            kind = attribute.upper()
        elif attribute == "function_constant":
            condition = argument.strip()
        elif attribute in ("texture", "sampler", "stage_in", "threads_per_quadgroup"):
            source.fail(token, f"the emulator has no [[{attribute}]]")
        elif attribute != "maybe_unused":
            source.fail(token, f"unknown attribute '{attribute}' of the kernel's argument '{name}'")
    if kind in DIMENSIONS:
        type_ = next(source.tokens[i].text for i in names if source.tokens[i].text != "const")
        components = int(type_[-1]) if VECTOR.fullmatch(type_) else 1
        if kernel.dimensions not in (None, components):
            source.fail(source.tokens[first], f"'{name}' has {components} components, but others of its kind have {kernel.dimensions}")
        kernel.dimensions = components
    if kind is None:
        source.fail(source.tokens[first], f"the kernel's argument '{name}' has no attribute that says what it is")
    for other, other_kind, other_index, _ in kernel.parameters:
        if kind in ("BUFFER", "THREADGROUP") and (other_kind, other_index) == (kind, index):
            source.fail(source.tokens[first], f"'{name}' and '{other}' have the same slot, {index}")
    kernel.parameters.append((name, kind, index, condition))


def kernel_definition(source, i):
    """Parses the kernel whose `kernel` token (or whose [[kernel]]) is at i; returns it and its last token's index."""
    tokens = source.tokens
    first, own = i, []
    if tokens[i].text == "kernel":
        source.replace(tokens[i].start, tokens[i].end, "static")
    else:  # [[kernel]], perhaps with other attributes
        end = source.match(i)
        own, _ = attributes(source, i, end)
        source.replace(tokens[i].start, tokens[end].end, "static")
        i = end
    j = i + 1
    while tokens[j].text != "(" or tokens[j - 1].text in ("__attribute__", "alignas"):
        if tokens[j].text == "[[":
            j = source.match(j)
        elif tokens[j].text == "(":
            j = source.match(j)
        elif tokens[j].text in ("{", ";"):
            source.fail(tokens[i], "this kernel has no list of arguments")
        j += 1
    found, spans = attributes(source, i + 1, j - 1)
    back = first - 1
    while back >= 0 and tokens[back].text == "]]":  # attributes before
        start = back
        while tokens[start].text != "[[":
            start -= 1
        more, more_spans = attributes(source, start, back)
        found, spans, back = found + more, spans + more_spans, start - 1
    for start, end in spans:
        source.replace(tokens[start].start, tokens[end].end, "")
    kernel = Kernel(tokens[j - 1].text, tokens[j - 1], source.place(tokens[j - 1].start))
    kernel.template = back >= 0 and tokens[back].text == ">"
    for attribute, argument, token in own + found:
        if attribute == "max_total_threads_per_threadgroup":
            kernel.max_threads = argument
        elif attribute == "required_threads_per_threadgroup":
            kernel.required = (argument.split(",") + ["1", "1"])[:3]
        elif attribute == "host_name":
            kernel.name = argument.strip().strip('"')
        elif attribute not in ("kernel", "maybe_unused"):
            source.fail(token, f"unknown attribute '{attribute}' of a kernel")
    close = source.match(j)
    start = k = j + 1
    depth = 0
    while k <= close:
        text = tokens[k].text
        if text in ("(", "[", "[[", "<", "{"):
            depth += 1
        elif text in (")", "]", "]]", ">", "}") and k < close:
            depth -= 1
        if k == close or (text == "," and depth == 0):
            if k > start:
                parameter(source, start, k - 1, kernel)
            start = k + 1
        k += 1
    return kernel, close


def instantiation(source, i, templates):
    """`template [[host_name("x")]] [[kernel]] T f<A>...;` at i: an entry of the table."""
    tokens = source.tokens
    end = i
    while tokens[end].text != ";":
        end += 1
    found, spans = attributes(source, i, end)
    names = [argument.strip().strip('"') for name, argument, _ in found if name == "host_name"]
    for j in range(end, i, -1):
        if tokens[j].text in templates and tokens[j + 1].text == "<":
            if any(a <= j <= b for a, b in spans):
                continue
            close = j + 1
            depth = 0
            while True:
                depth += {"<": 1, ">": -1}.get(tokens[close].text, 0)
                if depth == 0:
                    break
                close += 1
            if close + 1 <= end and tokens[close + 1].text == ")" and tokens[end - 1].text != ")":
                continue  # within decltype(...)
            template = templates[tokens[j].text]
            kernel = Kernel(names[0] if names else tokens[j].text, tokens[j], source.place(tokens[j].start))
            kernel.function = source.span(j, close)
            kernel.parameters = template.parameters
            kernel.max_threads, kernel.required = template.max_threads, template.required
            source.replace(tokens[i].start, tokens[end].end, "")
            return kernel, end
    return None, end


def threadgroup_variable(source, i, number, syntax):
    """A statement that starts with `threadgroup` at i; returns its last token. Pointers stay what they are."""
    tokens = source.tokens
    end = i
    depth = 0
    pointer = False
    commas = []
    initial = None
    angle = 0
    while tokens[end].text != ";" or depth > 0:
        text = tokens[end].text
        if text in ("(", "[", "{", "[["):
            depth += 1
        elif text in (")", "]", "}", "]]"):
            depth -= 1
        elif depth == 0:
            if text == "<":
                angle += 1
            elif text == ">":
                angle -= 1
            elif angle == 0:
                pointer = pointer or text in ("*", "&")
                if text == "=":
                    initial = end
                elif text == ",":
                    commas.append(end)
        end += 1
    if pointer:
        return end
    if initial is not None:
        source.fail(tokens[initial], "threadgroup variables have no initial value")
    # type, then `name dimensions` for each declarator
    bounds = [*commas, end]
    first_end = bounds[0] - 1
    while tokens[first_end].text == "]":
        depth = 0
        while True:
            depth += {"]": 1, "[": -1}.get(tokens[first_end].text, 0)
            first_end -= 1
            if depth == 0:
                break
    type_ = source.span(i + 1, first_end - 1)
    out, start = [], first_end
    for bound in bounds:
        name = tokens[start].text
        dimensions = source.span(start + 1, bound - 1) if bound > start + 1 else ""
        out.append(
            f"typedef threadgroup {type_} {name}__memory {dimensions}; {name}__memory &{name} = "
            + (
                f"emulator_threadgroup<{name}__memory>();"
                if syntax
                else f"*({name}__memory *)emulator_variable({number[0]}, sizeof({name}__memory), "
                f"alignof({name}__memory), \"{name}\");"
            )
        )
        number[0] += 1
        start = bound + 1
    source.replace(tokens[i].start, tokens[end].end, " ".join(out))
    return end


def make_vectors(source):
    """For --syntax: float4(...) is a call, which clang's own vectors have not."""
    tokens = source.tokens
    for i, token in enumerate(tokens[:-1]):
        if VECTOR.fullmatch(token.text) and tokens[i + 1].text == "(":
            if tokens[i + 2].text in ("&", ")"):
                continue
            close = source.match(i + 1)
            if tokens[i + 2].text == "*" and close + 1 < len(tokens) and tokens[close + 1].text in ("[", "("):
                continue
            if i > 0 and tokens[i - 1].text == "operator":
                continue
            source.replace(token.start, token.end, f"emulator_make_{token.text}")


def program(source, syntax):
    tokens = source.tokens
    kernels, templates, constants, number = [], {}, [], [0]
    depth = 0
    scopes = []  # whether each open brace is a namespace's
    i = 0
    while i < len(tokens):
        text = tokens[i].text
        previous = tokens[i - 1].text if i > 0 else ";"
        if text == "{":
            back = i - 1
            while back >= 0 and re.match(r"[\w:]+$", tokens[back].text) and tokens[back].text != "namespace":
                back -= 1
            scopes.append(back >= 0 and tokens[back].text == "namespace")
            depth += not scopes[-1]
        elif text == "}":
            if scopes and not scopes.pop():
                depth -= 1
        elif depth == 0 and text == "template" and tokens[i + 1].text != "<":
            kernel, end = instantiation(source, i, templates)
            if kernel is not None:
                kernels.append(kernel)
            i = end
        elif depth == 0 and (text == "kernel" or (text == "[[" and tokens[i + 1].text == "kernel")):
            kernel, i = kernel_definition(source, i)
            if kernel.template:
                templates[kernel.function] = kernel
            else:
                kernels.append(kernel)
        elif depth == 0 and text == "constant" and previous in (";", "}", "{", "]]"):
            end = i
            while tokens[end].text != ";":
                end = source.match(end) if tokens[end].text in ("{", "(", "[", "[[") else end
                end += 1
            i = constant(source, i, end, constants, syntax)
        elif depth > 0 and text == "threadgroup" and previous in (";", "{", "}", ")", ":"):
            i = threadgroup_variable(source, i, number, syntax)
        i += 1
    if syntax:
        make_vectors(source)
    return kernels, constants


def constant(source, i, end, constants, syntax):
    """A program-scope constant, tokens i..end: one that the host gives, one computed from such, or a table."""
    tokens = source.tokens
    found, spans = attributes(source, i, end)
    given = [(argument, token) for name, argument, token in found if name == "function_constant"]
    if given:
        first_attribute = spans[0][0]
        name = tokens[first_attribute - 1].text
        start = i + 2 if tokens[i + 1].text == "const" else i + 1
        type_ = source.span(start, first_attribute - 2)
        index = integer(source, given[0][1], given[0][0])
        for other in constants:
            if other[1] == index and other[0] != name:
                source.fail(tokens[i], f"'{name}' and '{other[0]}' have the same number, {index}")
        constants.append((name, index))
        source.replace(
            tokens[i].start,
            tokens[end].end,
            f"extern constant {type_} {name};"
            if syntax
            else f"static {type_} {name}; static bool {name}__defined; static emulator_constant {name}__constant = "
            f"{{emulator_constants, \"{name}\", {index}, emulator::constant_type<{type_}>::kind, &{name}, "
            f"&{name}__defined, nullptr}}; static emulator::adder {name}__adder(&emulator_constants, &{name}__constant);",
        )
        return end
    equals = next((k for k in range(i, end) if tokens[k].text == "="), None)
    # is_function_constant_defined(x) is a macro, x__defined by now.
    names = {spelled for name, _ in constants for spelled in (name, name + "__defined")}
    if equals is not None and any(tokens[k].text in names for k in range(equals, end)):
        name = tokens[equals - 1].text
        start = i + 2 if tokens[i + 1].text == "const" else i + 1
        type_ = source.span(start, equals - 2)
        value = source.span(equals + 1, end - 1)
        constants.append((name, -1))
        source.replace(
            tokens[i].start,
            tokens[end].end,
            f"extern constant {type_} {name};"
            if syntax
            else f"static {type_} {name}; static void {name}__derive() {{ {name} = {value}; }} static emulator_constant "
            f"{name}__constant = {{emulator_constants, \"{name}\", 0, EMULATOR_BOOL, nullptr, nullptr, {name}__derive}}; "
            f"static emulator::adder {name}__adder(&emulator_constants, &{name}__constant);",
        )
    return end


def table(kernels, constants):
    """What is appended: a function that calls each kernel, and the table of them."""
    names = {name for name, _ in constants}
    lines = ["", '# 1 "kernel table"']
    entries = []
    for number, kernel in enumerate(kernels):
        arguments, sources = [], []
        for i, (name, kind, index, condition) in enumerate(kernel.parameters):
            if condition is not None and condition not in names:
                file, line = kernel.place
                sys.exit(f"{file}:{line}: error: '{condition}' is not a function constant of this file")
            source = f"EMULATOR_{kind}, {index}"
            pointer = f"&{condition}" if condition is not None else "nullptr"
            arguments.append(
                f'    emulator::describe<emulator::parameter<{i}, decltype(&{kernel.function})>, {source}>("{name}", {pointer}),'
            )
            sources.append(f"emulator::source<{source}>()")
        lines.append(f"static const emulator_argument emulator_arguments_{number}[] = {{")
        lines += arguments or ["    {}"]
        lines.append("};")
        lines.append(f"static void emulator_launch_{number}(const emulator_launch *launch) {{")
        lines.append(f"    emulator::call({', '.join(['&' + kernel.function, 'launch', *sources])});")
        lines.append("}")
        file, line = kernel.place
        entries.append(
            f'    {{"{kernel.name}", emulator_launch_{number}, emulator_arguments_{number}, {len(kernel.parameters)}, '
            f'{kernel.max_threads}, {{{", ".join(kernel.required)}}}, "{file}", {line}}},'
        )
    lines.append("static const emulator_kernel emulator_kernels[] = {")
    lines += entries or ["    {}"]
    lines.append("};")
    lines.append(f"static emulator_unit emulator_this_unit = {{nullptr, emulator_kernels, {len(kernels)}, &emulator_constants}};")
    lines.append("__attribute__((constructor)) static void emulator_add_unit() { emulator_register(&emulator_this_unit); }")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--syntax", action="store_true", help="for the check of address spaces: no table")
    options = parser.parse_args()
    source = Source(open(options.input).read())
    kernels, constants = program(source, options.syntax)
    with open(options.output, "w") as out:
        out.write(source.result())
        if not options.syntax:
            out.write(table(kernels, constants))


if __name__ == "__main__":
    main()
