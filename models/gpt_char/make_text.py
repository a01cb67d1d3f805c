#!/usr/bin/env python3
"""Writes the text that the character GPT learns: the log of a lighthouse, one entry a day.

  python3 make_text.py > text.txt      deterministic; 125 KB

The clauses below were written for this project and are put together by a small grammar, with facts
that hold within an entry (wind, sea, light hours, who visited), so there is something to learn at
every distance: spelling, words, sentences, the shape of an entry.
"""
import random

MONTHS = [("January", 31), ("February", 28), ("March", 31), ("April", 30), ("May", 31), ("June", 30),
          ("July", 31), ("August", 31), ("September", 30), ("October", 31), ("November", 30),
          ("December", 31)]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
WINDS = ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"]
PEOPLE = ["Marta", "old Pieter", "the doctor", "Ines and her brother", "the supply boat",
          "a man from the harbour office", "the schoolteacher", "Tomas", "two fishermen from the bay",
          "the girl who counts seals"]
GIFTS = ["a sack of potatoes", "lamp oil for a month", "letters from the mainland", "a new wick",
         "four loaves and a cheese", "a book about bees", "news of a wedding", "rope and tar",
         "a basket of eggs", "nothing but good company"]
SHIPS = ["a grey steamer", "three herring boats", "a schooner with patched sails", "the mail packet",
         "a tug with a barge behind it", "a white yacht", "the coast guard cutter", "a timber ship"]
BIRDS = ["the terns", "a pair of ravens", "the gannets", "hundreds of geese", "one tired pigeon",
         "the cormorants", "a young owl", "the oystercatchers"]
CHORES = [
    "Cleaned the lens with vinegar and a soft cloth; it took the whole morning.",
    "Painted the rail of the gallery, white as always, and got as much on my sleeves.",
    "Wound the clockwork twice, for the weight sticks when the air is damp.",
    "Mended the hen house, where the fox had found a loose board.",
    "Carried coal up from the landing, twenty two buckets, and counted every one.",
    "Oiled the hinges of the storm door, which had begun to complain.",
    "Planted beans behind the wall, where the salt does not reach.",
    "Swept the stairs from the top to the bottom, one hundred and nine steps.",
    "Trimmed the wick and filled the reservoir before dinner.",
    "Patched the boat with canvas and tar, and left her upside down to dry.",
    "Wrote to the office again about the crack in the north window.",
    "Boiled the shirts, hung them in the lee of the tower, and lost one to the wind.",
    "Checked the barometer against the one in the boat house; they still disagree.",
    "Split the driftwood and stacked it where the sun comes in the afternoon.",
]
THOUGHTS = [
    "A lamp asks for little, but it asks every day.",
    "I do not mind the quiet; it is never the same quiet twice.",
    "It is strange how far a small light can be seen, and how little it sees itself.",
    "The sea keeps no log, so I keep one for both of us.",
    "Somebody out there steers by this window and will never know my name.",
    "When the wind stops I wake up, as a miller does when the wheel stops.",
    "Winter is long here, but it is honest about it.",
    "I have read all the books twice and begin to know how they end.",
    "The tide was early, or I was late.",
    "One learns to cook for one, and then to cook well for one.",
    "The days are drawing out; I can tell by the hens.",
    "I thought of my father, who could not see a knot without untying it.",
]


class Log:
    def __init__(self):
        self.rng = random.Random(1)
        self.force, self.wind = 3, 5
        self.decks = {}  # choices are dealt like cards, so that each comes up before any repeats

    def pick(self, items):
        deck = self.decks.setdefault(id(items), [])
        if not deck:
            deck.extend(items)
            self.rng.shuffle(deck)
        return deck.pop()

    def weather(self):
        r = self.rng
        self.force = min(9, max(0, self.force + r.choice([-2, -1, -1, 0, 1, 1, 2])))
        self.wind = (self.wind + r.choice([-1, 0, 0, 1])) % 8
        wind = WINDS[self.wind]
        if self.force == 0:
            return "No wind at all, and the sea like a plate."
        if self.force <= 2:
            return f"Light air from the {wind}; the sea is smooth."
        if self.force <= 4:
            return f"A steady breeze from the {wind}, force {self.force}; small waves with a few white tops."
        if self.force <= 6:
            return f"Fresh wind from the {wind}, force {self.force}; the sea is rough and the landing is wet."
        if self.force <= 7:
            return f"Near gale from the {wind}, force {self.force}; spray as high as the kitchen window."
        return f"Storm from the {wind}, force {self.force}; the tower hums and nobody could land today."

    def traffic(self):
        ship, r = self.pick(SHIPS), self.rng
        if self.force >= 8:
            return f"Saw {ship} far out, running before the weather with hardly any sail."
        return r.choice([
            f"At noon {ship} passed to the {r.choice(WINDS)}, close enough to wave.",
            f"In the evening {ship} went by without a signal.",
            f"Before sunrise {ship} lay off the point, waiting for the tide.",
            f"Counted the lights of {ship} until they went under the edge of the world."])

    def visit(self):
        if self.force >= 7:
            return f"Expected {self.pick(PEOPLE)}, but no boat could have come in this."
        who, what = self.pick(PEOPLE), self.pick(GIFTS)
        return self.rng.choice([
            f"In the morning {who} came over and brought {what}.",
            f"Had a visit: {who}, with {what}. We drank tea in the kitchen until the light was due.",
            f"Towards evening {who} rowed across with {what}, and stayed for the soup."])

    def birds(self):
        bird = self.pick(BIRDS)
        return self.rng.choice([
            f"On the rocks below, {bird} made such a noise that I looked twice for the reason.",
            f"In the garden, {bird} again, not in the least afraid of me.",
            f"Over the point, {bird}, heading {self.rng.choice(WINDS)} in good order."])

    def entry(self, number, month, day, lit, out):
        parts = [self.weather(), self.pick(CHORES)]
        for part, chance in ((self.traffic, 0.55), (self.visit, 0.4), (self.birds, 0.45)):
            if self.rng.random() < chance:
                parts.append(part())
        if self.rng.random() < 0.5:
            parts.append(self.pick(THOUGHTS))
        return (f"{DAYS[number % 7]}, {day} {month}. {' '.join(parts)} "
                f"Lamp lit at {lit}, put out at {out}.\n")


def main():
    log, number = Log(), 0
    for m, (month, days) in enumerate(MONTHS):
        for day in range(1, days + 1):
            season = abs(m + day / 31 - 6) / 6  # 0 at midsummer, 1 at midwinter
            lit = int(21 * 60 + 40 - season * 310) // 5 * 5
            out = int(3 * 60 + 50 + season * 250) // 5 * 5
            print(log.entry(number, month, day, f"{lit // 60}:{lit % 60:02}",
                            f"{out // 60}:{out % 60:02}"))
            number += 1


if __name__ == "__main__":
    main()
