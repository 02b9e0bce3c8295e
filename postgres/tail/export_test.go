package tail

import "time"

// Once has a commit wake once, within the time of a test.
func (t *Tail) Once() { t.again = time.Hour }
