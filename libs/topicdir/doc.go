// Package topicdir keeps the topic directories of a storage node, each stamped
// with the incarnation that it belongs to:
//
//	<data>/topics/<topic>/incarnation              the marker
//	<data>/topics/<topic>/p00003/                  one directory per partition copy
//	<data>/topics/<topic>/p00003.superseded-<copy> a copy that another one has replaced, being removed
//	<data>/topics/<topic>/p00003.quarantine-<copy> one that may have what nobody else has, set aside; with
//	                                               a note, set-aside.json: {"since_ms", "reason"}
//	<data>/topics/<topic>.stale-<incarnation>      set aside (-<n> when the name is taken)
//	<data>/staging/                                directories that are being made
//
// Invariants:
//   - A directory never stands under a topic's name without its marker synced:
//     it is made under staging and renamed in.
//   - A directory is served only to the incarnation that its marker names
//     (TestOpenNeverServesAnotherIncarnation). Any other is set aside by a
//     rename, which can be undone, and only when the metastore was asked.
//   - An incarnation that lies in quarantine is moved back when it is opened; it
//     never starts empty beside its data.
//   - Only a directory whose valid marker names an incarnation of which the caller
//     hands in the verdict Gone is removed (TestNothingButTheGoneIsRemoved), after it was
//     renamed away from the topic's name, its marker last. A quarantine that holds
//     nothing at all is what a kill left of that; New removes it.
//   - A failing read is an error and never a verdict about a directory. What is no
//     directory (a file, a link) is left alone, whatever its name.
//
// One function, act, renames and removes topic directories, takes the verdict as an
// argument and reads the marker again. The open guard of a topic (one per name,
// letter case aside, because a disk may ignore it) is held by whoever opens, sets
// aside, purges or reclaims, until it is done.
//
// It does not ask the metastore: its caller does, and hands the verdict in.
//
// # Marker
//
// Text, 26 bytes: the incarnation as 16 lower-case hex digits, a space, the
// CRC-32C of these 16 digits as 8 lower-case hex digits, a newline.
package topicdir
