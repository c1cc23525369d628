package mutant

type integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

type ordered interface {
	integer | ~float32 | ~float64 | ~string
}

// Bool returns a condition, negated if the mutant n is active.
func Bool[B ~bool](n int, b B) B {
	if active(n) {
		return !b
	}
	return b
}

// Drop reports whether the mutant n is active, which leaves out a call.
func Drop(n int) bool { return active(n) }

// Less returns a < b; the mutant n includes the boundary.
func Less[T ordered](n int, a, b T) bool {
	if active(n) {
		return a <= b
	}
	return a < b
}

// LessOrEqual returns a <= b; the mutant n excludes the boundary.
func LessOrEqual[T ordered](n int, a, b T) bool {
	if active(n) {
		return a < b
	}
	return a <= b
}

// Greater returns a > b; the mutant n includes the boundary.
func Greater[T ordered](n int, a, b T) bool {
	if active(n) {
		return a >= b
	}
	return a > b
}

// GreaterOrEqual returns a >= b; the mutant n excludes the boundary.
func GreaterOrEqual[T ordered](n int, a, b T) bool {
	if active(n) {
		return a > b
	}
	return a >= b
}

// Int returns a number, or with the mutant n its successor.
func Int[T integer](n int, v T) T {
	if active(n) {
		return v + 1
	}
	return v
}

// String returns a text, or with the mutant n another one.
func String[S ~string](n int, s S) S {
	if active(n) {
		return s + "~"
	}
	return s
}
