// Package alarm calls many things in time with one goroutine and one timer: lease
// deadlines of queues, and cursors of children that wait for a delay or a retry.
//
// Invariants: whatever waits costs one place in a heap and no goroutine; an alarm
// stands in it once, at the earliest time it was set to; one that has ended never
// rings again, although a call that had begun may still run.
//
// The clock is the owner's, in ms, and must not go back or jump: a timer sleeps by it.
// It does not know what is called; the call may set its own alarm again.
package alarm
