// Package ui is the operator's web page: an [http.Handler] that shows what an outbox
// holds and lets a person act on it.
//
//	page, err := ui.New(box, ui.Config{Path: "/outbox/", Token: token})
//	...
//	mux.Handle("/outbox/", page)
//	go page.Run(ctx)
//
// # What it shows
//
// Counts of messages by state, the age of the oldest that waits, the lanes with their
// owners and leases, charts of the last hour, parked messages with why they are parked,
// one message in full, and the audit of what operators did. It never counts done messages,
// so it answers as fast with millions of them; counts stop at [CountLimit].
//
// The charts are drawn from samples that the page itself takes, every Config.Sample, in a
// ring of [Samples]: the counts of ready, retry, held and dead messages and the age of the
// oldest ready one ([outbox.Outbox.Stats]); what was settled between two samples, by the
// numbers that the done table gives its rows; and the time from insert to settle of the
// newest [Newest] done messages, those that were replayed or discarded left out. Nothing
// is known of the time before the page runs, and of published messages nothing where they
// are not kept.
//
// # Who may do what
//
// Without a token or a password everybody who reaches the page may look, and nobody may
// act: so it must be reached by loopback only, which is for the server to see to
// ([Loopback]). With one, everything asks for it, as HTTP basic authentication; the name
// that the browser asks for is who acts.
//
// Requeue, discard and replay begin with a page that counts what they would change and
// asks why; what was confirmed is what is done, once, within [ConfirmWithin], and it is
// kept in the audit ([outbox.Operator]).
//
// The page refuses requests for a host that it does not know, against DNS rebinding, and
// those that another site makes a browser send. It loads nothing from elsewhere and runs
// one script, without which everything works but the renewal of the overview. Payloads are
// shown when asked for, as text that is escaped and bounded, or in hexadecimal. No page is
// to be kept in a cache.
package ui
