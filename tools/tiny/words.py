"""Word lists and the table of facts that the generators draw from, and helpers for random names and values.

Everything random comes from the `random.Random` that the caller passes, so a seed fixes the data."""
import zlib

WORDS = """apple river mountain garden window candle bridge forest silver orange purple yellow planet rocket engine
letter number animal rabbit turtle monkey tiger eagle falcon dolphin whale shark spider beetle flower butter cheese
bread pepper sugar coffee water bottle basket kitchen table chair carpet mirror pillow blanket doctor teacher farmer
sailor soldier artist writer singer dancer painter summer winter spring autumn morning evening midnight thunder
lightning rain snow cloud storm island desert ocean valley canyon village castle tower temple market street school
library museum hospital station airport train ship boat bicycle hammer ladder bucket shovel needle thread button
pocket jacket shirt glove boot hat ring crown sword shield arrow wagon saddle horse donkey camel goat sheep chicken
duck goose pigeon sparrow robin owl fox wolf bear deer mouse cat dog frog snake lizard worm snail bee ant wasp
strawberry banana cherry lemon melon grape peach plum pear mango potato tomato carrot onion garlic cabbage lettuce
spinach pumpkin cucumber mushroom walnut almond peanut honey vanilla chocolate cinnamon ginger mustard vinegar
guitar piano violin trumpet flute drum harp music song poem story book paper pencil ruler marker crayon eraser
computer keyboard screen printer camera radio telephone battery magnet wire cable switch lamp clock watch calendar
minute hour week month year century history science biology physics chemistry geometry algebra language grammar
sentence paragraph chapter question answer problem solution example reason purpose meaning beauty courage freedom
justice kindness patience wisdom memory dream hope fear anger laughter smile tear voice whisper shadow light
darkness color shape circle square triangle line point corner edge surface metal copper iron steel gold bronze
marble stone brick cement glass plastic rubber leather cotton wool silk linen velvet rope chain anchor compass map
journey travel path road highway tunnel harbor beach shore wave tide current stream lake pond waterfall glacier
volcano earthquake hurricane tornado rainbow sunrise sunset moonlight star comet galaxy universe gravity energy
motion speed distance weight height length width balance pressure heat fire smoke ash ember spark oil coal wood leaf
branch root seed stem petal thorn grass moss fern willow maple cedar pine birch oak elm calla lily rose tulip daisy
orchid violet jasmine happy quiet clever brave gentle honest simple strange bright heavy narrow hollow frozen golden
wooden broken hidden sudden common ancient modern little giant early late quick slow warm cold sweet bitter sour""".split()

ADJECTIVES = """red blue green black white yellow silver golden old new small large round square wooden broken hidden
quiet bright dark heavy narrow tall short warm cold first second third northern southern eastern western upper lower
inner outer empty open locked painted ancient modern striped spotted""".split()

NOUNS = """door gate box key room house tower garden bridge boat train car lamp clock table chair book letter map
picture vase chest drawer cabinet shelf window mirror safe vault cellar attic kitchen library office shop mill barn
well tent wagon cart ship lantern candle bell drum flag basket bottle barrel bucket crate folder notebook parcel
ticket badge card machine engine pump valve sensor server printer robot rocket satellite""".split()

PLACES = """kitchen garden attic cellar library office garage hallway bedroom study barn stable harbour station
museum market tower chapel school park forest cave tunnel bakery workshop laboratory warehouse theatre""".split()

NAMES = """Anna Ben Clara David Emma Felix Grace Henry Iris Jack Karl Laura Maria Nina Oscar Paul Rosa Simon Tom Vera
Walter Yara Zoe Alice Bruno Carmen Daniel Elena Frank Greta Hugo Ivan Julia Kevin Lena Marco Nora Otto Petra Quinn
Robert Sofia Thomas Ursula Victor Wendy Xenia Yusuf Amir Bella Chen Diego Esther Fatima George Hana Igor Jonas Kira
Liam Mina Noah Olga Pablo Rita Sam Tara Uma Vince Lily Max Eva Leo Ada Alan Priya Ravi Kenji Yuki Omar Layla""".split()

CITIES = """Paris Rome Berlin Madrid London Vienna Prague Warsaw Lisbon Dublin Oslo Stockholm Helsinki Athens Cairo
Tokyo Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai Sydney Melbourne Boston Chicago Denver Seattle Houston Dallas
Miami Toronto Montreal Lima Bogota Santiago Nairobi Lagos Accra Tunis Istanbul Moscow Kyiv Budapest Zurich Geneva
Milan Naples Venice Hamburg Munich Cologne Lyon Nice Porto Seville Glasgow Oxford Cambridge Leeds York Austin""".split()

FRUITS = "apples pears plums oranges lemons books pens coins stamps cards marbles eggs cups shells stones nuts".split()

CAPITALS = dict(p.split(":") for p in """France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon
England:London Ireland:Dublin Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Poland:Warsaw
Austria:Vienna Hungary:Budapest Greece:Athens Turkey:Ankara Russia:Moscow Ukraine:Kyiv Egypt:Cairo Kenya:Nairobi
Ghana:Accra Japan:Tokyo China:Beijing India:Delhi Thailand:Bangkok Vietnam:Hanoi Australia:Canberra Canada:Ottawa
Mexico:Mexico_City Cuba:Havana Peru:Lima Chile:Santiago Argentina:Buenos_Aires Brazil:Brasilia Colombia:Bogota
Switzerland:Bern Belgium:Brussels Netherlands:Amsterdam Iceland:Reykjavik Romania:Bucharest Bulgaria:Sofia
Croatia:Zagreb Serbia:Belgrade Iran:Tehran Iraq:Baghdad Israel:Jerusalem Jordan:Amman Nepal:Kathmandu
Mongolia:Ulaanbaatar Morocco:Rabat""".split())
CAPITALS = {k: v.replace("_", " ") for k, v in CAPITALS.items()}

ELEMENTS = dict(p.split(":") for p in """hydrogen:H helium:He lithium:Li carbon:C nitrogen:N oxygen:O fluorine:F
neon:Ne sodium:Na magnesium:Mg aluminium:Al silicon:Si phosphorus:P sulfur:S chlorine:Cl argon:Ar potassium:K
calcium:Ca iron:Fe copper:Cu zinc:Zn silver:Ag tin:Sn gold:Au mercury:Hg lead:Pb uranium:U nickel:Ni""".split())

OPPOSITES = dict(p.split(":") for p in """hot:cold big:small tall:short old:young fast:slow up:down left:right day:night
light:dark open:closed happy:sad hard:soft high:low wet:dry full:empty early:late strong:weak rich:poor near:far
good:bad true:false black:white inside:outside first:last love:hate win:lose buy:sell begin:end loud:quiet
heavy:light clean:dirty thick:thin wide:narrow sweet:sour above:below before:after always:never""".split())

YOUNG = dict(p.split(":") for p in """cat:kitten dog:puppy cow:calf horse:foal sheep:lamb goat:kid pig:piglet duck:duckling
hen:chick lion:cub bear:cub deer:fawn swan:cygnet frog:tadpole kangaroo:joey""".split())

LEGS = dict(dog=4, cat=4, horse=4, cow=4, spider=8, ant=6, bee=6, beetle=6, duck=2, hen=2, eagle=2, snake=0, fish=0,
            octopus=8, crab=10, human=2)

COLOURS = {("blue", "yellow"): "green", ("red", "yellow"): "orange", ("red", "blue"): "purple",
           ("black", "white"): "grey", ("red", "white"): "pink"}

FRENCH = dict(p.split(":") for p in """cat:chat dog:chien house:maison water:eau bread:pain book:livre sun:soleil moon:lune
tree:arbre flower:fleur milk:lait cheese:fromage red:rouge blue:bleu green:vert black:noir white:blanc one:un two:deux
three:trois four:quatre five:cinq friend:ami day:jour night:nuit king:roi queen:reine school:école street:rue
city:ville""".split())

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth".split()

OTHER_FACTS = [
    ("who wrote Hamlet", "William Shakespeare"), ("who wrote Emma", "Jane Austen"),
    ("who wrote Pride and Prejudice", "Jane Austen"), ("who painted the Mona Lisa", "Leonardo da Vinci"),
    ("who discovered radium", "Marie Curie"), ("who developed the theory of relativity", "Albert Einstein"),
    ("what is the largest planet", "Jupiter"), ("what is the smallest planet", "Mercury"),
    ("what is the largest ocean", "the Pacific Ocean"), ("what is the highest mountain", "Mount Everest"),
    ("what is the longest river in Africa", "the Nile"), ("what gas do plants take in", "carbon dioxide"),
    ("what do bees make", "honey"), ("what is frozen water called", "ice"),
    ("what colour is the sky on a clear day", "blue"), ("what colour is grass", "green"),
    ("how many days are in a week", "7"), ("how many months are in a year", "12"),
    ("how many sides has a triangle", "3"), ("how many sides has a square", "4"),
    ("how many sides has a hexagon", "6"), ("how many letters are in the English alphabet", "26"),
    ("how many continents are there", "7"), ("how many planets are in the solar system", "8"),
    ("what is the chemical formula of water", "H2O"), ("what is the freezing point of water in Celsius", "0"),
    ("what is the boiling point of water in Celsius", "100"), ("what star does the Earth orbit", "the Sun"),
    ("what is the fastest land animal", "the cheetah"), ("what is the largest animal", "the blue whale"),
]

UNITS = [  # (large unit singular, plural, factor, small unit plural, largest count asked for)
    ("hour", "hours", 60, "minutes", 24), ("minute", "minutes", 60, "seconds", 30), ("day", "days", 24, "hours", 14),
    ("week", "weeks", 7, "days", 30), ("year", "years", 12, "months", 20), ("kilometre", "kilometres", 1000, "metres", 99),
    ("metre", "metres", 100, "centimetres", 99), ("centimetre", "centimetres", 10, "millimetres", 99),
    ("kilogram", "kilograms", 1000, "grams", 99), ("tonne", "tonnes", 1000, "kilograms", 99),
    ("litre", "litres", 1000, "millilitres", 99), ("foot", "feet", 12, "inches", 20), ("yard", "yards", 3, "feet", 40),
    ("pound", "pounds", 16, "ounces", 12), ("dozen", "dozen", 12, "pieces", 15), ("kilobyte", "kilobytes", 1000, "bytes", 99),
    ("dollar", "dollars", 100, "cents", 99), ("century", "centuries", 100, "years", 30), ("decade", "decades", 10, "years", 50),
]

SYLLABLES = [c + v for c in "b c d f g h j k l m n p r s t v w z br dr gr kl pl st tr sh ch".split() for v in "aeiou"]
ENDINGS = ["", "", "n", "r", "l", "s", "x", "t", "m", "k", "nd", "sk"]


def held_out(*key):
    """True for the one eighth of the keys that training never sees."""
    return zlib.crc32(repr(key).encode()) % 8 == 0


def pick_key(rng, held, draw):
    """Draws until the key (the drawn value itself) lies on the wanted side of the split; gives up after 50 draws."""
    for _ in range(50):
        value = draw()
        if held_out(*value) == held:
            break
    return value


def made_up(rng, low=2, high=3):
    """A pronounceable random word such as 'tralonk'."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(low, high))) + rng.choice(ENDINGS)


def code(rng):
    """A random identifier in one of several shapes, such as 'K7-Q2X9' or '48213'."""
    kind = rng.randrange(6)
    letters, digits = "ABCDEFGHJKLMNPQRSTUVWXYZ", "0123456789"
    if kind == 0:
        return "".join(rng.choice(digits) for _ in range(rng.randint(3, 7)))
    if kind == 1:
        return "".join(rng.choice(letters + digits) for _ in range(rng.randint(4, 8)))
    if kind == 2:
        return "".join(rng.choice(letters) for _ in range(2)) + "-" + "".join(rng.choice(digits) for _ in range(4))
    if kind == 3:
        return "".join(rng.choice("abcdef" + digits) for _ in range(rng.randint(6, 10)))
    if kind == 4:
        return rng.choice(WORDS) + "-" + rng.choice(WORDS) + "-" + str(rng.randint(1, 99))
    return rng.choice(WORDS) + "_" + str(rng.randint(1, 999))


def person(rng):
    return rng.choice(NAMES) if rng.random() < 0.6 else made_up(rng).capitalize()


def city(rng):
    return rng.choice(CITIES) if rng.random() < 0.7 else made_up(rng).capitalize()


def join(items):
    """'a', 'a and b', 'a, b and c'."""
    items = list(items)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def sentence(rng):
    """A made filler sentence."""
    a, n, p = rng.choice(ADJECTIVES), rng.choice(NOUNS), rng.choice(PLACES)
    w, v = rng.choice(WORDS), rng.choice("stands lies waits rests hangs remains sits was_left was_found".split())
    return rng.choice([
        f"The {a} {n} {v} in the {p}.", f"{person(rng)} saw a {n} near the {p}.", f"There was a {w} beside the {a} {n}.",
        f"Every {rng.choice(DAYS)}, {person(rng)} walked to the {p}.", f"In {city(rng)} the {w} is {rng.choice(ADJECTIVES)}.",
        f"Nobody knew why the {n} was {a}.", f"{person(rng)} and {person(rng)} talked about the {w}.",
        f"It was a {rng.choice('warm cold windy rainy bright quiet'.split())} {rng.choice('morning evening day night'.split())} in {city(rng)}.",
    ]).replace("_", " ")
