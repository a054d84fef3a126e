// Package arch is the architecture as tests: which package may import which,
// how large a file or a function may grow, and what must be documented.
//
// Each rule is a row with its reason, and each row is checked to still match
// something, so that a rule cannot outlive what it was about. An exception is a
// row with a reason too. The package reads source text; it runs nothing of it.
package arch
