package bench

// What the tests look at.
var (
	NumberText   = number
	PercentileOf = percentile
	RatiosOf     = ratios
	FigureOf     = figure
)

// Met tells whether a goal is reached.
func (g Goal) Met(ours float64, ratio *Figure) string { return g.met(ours, ratio) }
