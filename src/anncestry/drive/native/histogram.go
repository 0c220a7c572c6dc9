package main

import "math/bits"

// histogram counts durations in nanoseconds in buckets some 3 % wide; its maximum is exact.
type histogram struct {
	counts [64 << 5]uint64
	total  uint64
	max    int64
}

func (h *histogram) add(ns int64) {
	ns = max(ns, 0)
	h.counts[bucket(uint64(ns))]++
	h.total++
	h.max = max(h.max, ns)
}

func bucket(value uint64) int {
	if value < 32 {
		return int(value)
	}
	exponent := bits.Len64(value) - 6
	return (exponent+1)<<5 + int(value>>exponent)&31
}

// top is the largest value of a bucket.
func top(index int) int64 {
	if index < 32 {
		return int64(index)
	}
	exponent := index>>5 - 1
	return int64((uint64(index&31)+33)<<exponent) - 1
}

func (h *histogram) merge(other *histogram) {
	for i, count := range other.counts {
		h.counts[i] += count
	}
	h.total += other.total
	h.max = max(h.max, other.max)
}

// quantile is the nearest-rank one, rounded up to its bucket's top, and at most the maximum.
func (h *histogram) quantile(q float64) int64 {
	rank := uint64(q*float64(h.total) + 0.999999)
	var seen uint64
	for i, count := range h.counts {
		seen += count
		if seen >= rank && seen > 0 {
			return min(top(i), h.max)
		}
	}
	return h.max
}
