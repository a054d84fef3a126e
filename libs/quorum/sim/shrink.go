package sim

import "slices"

// shrinkRuns bounds how often Shrink plays: some seconds.
const shrinkRuns = 20_000

// Shrink leaves steps out of a failing run for as long as it goes on failing, in
// whatever way, and returns the shortest one found with its trace. A step draws
// from its own number only, so that leaving one out changes no other's.
func Shrink(f *Failure) *Failure {
	best, opt := f.choices, f.opt
	for opt.calm = 1; opt.calm < 40; opt.calm++ {
		if _, failed := play(f.Seed, opt, best, false); failed != nil {
			best = failed.choices
			break
		}
	}
	runs := 0
	for size := len(best) / 2; size > 0 && runs < shrinkRuns; {
		removed := false
		for at := 0; at < len(best) && runs < shrinkRuns; runs++ {
			without := slices.Concat(best[:at], best[min(at+size, len(best)):])
			if _, failed := play(f.Seed, opt, without, false); failed != nil {
				best, removed = failed.choices, true
				continue
			}
			at += size
		}
		if !removed || size > len(best) {
			size /= 2
		}
	}
	_, short := play(f.Seed, opt, best, true)
	return short
}
