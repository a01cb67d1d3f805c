"""The epoch order of runtime/data/sampler.h, written independently in Python.

Prints the constants of sampler_test.cc: python3 sampler_reference.py SAMPLES SEED EPOCH
"""
import sys

M = (1 << 64) - 1


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
    return z ^ (z >> 31)


def epoch_order(samples, seed, epoch):
    key = mix((mix(seed) + epoch) & M)
    k = 0

    def below(bound):
        nonlocal k
        while True:
            k += 1
            product = mix((key + k * 0x9E3779B97F4A7C15) & M) * bound
            # The low half is uniform over multiples; the 2^64 mod bound smallest are one too many.
            if product & M >= (1 << 64) % bound:
                return product >> 64

    order = list(range(samples))
    for i in range(samples - 1, 0, -1):
        j = below(i + 1)
        order[i], order[j] = order[j], order[i]
    return order


if __name__ == "__main__":
    print(epoch_order(*map(int, sys.argv[1:4])))
