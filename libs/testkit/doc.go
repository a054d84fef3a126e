// Package testkit holds what tests of several packages share: a metadata view
// filled by hand, polling without sleeping, leak checks. Only tests import it.
package testkit
