// Package testkit holds what tests of several packages share: a metadata view
// filled by hand, servers on loopback, polling without sleeping. Only tests import it.
package testkit
