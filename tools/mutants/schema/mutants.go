package mutant

type integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

type ordered interface {
	integer | ~float32 | ~float64 | ~string
}

func Bool[B ~bool](n int, b B) B {
	if active(n) {
		return !b
	}
	return b
}

func Drop(n int) bool { return active(n) }

func Less[T ordered](n int, a, b T) bool {
	if active(n) {
		return a <= b
	}
	return a < b
}

func LessOrEqual[T ordered](n int, a, b T) bool {
	if active(n) {
		return a < b
	}
	return a <= b
}

func Greater[T ordered](n int, a, b T) bool {
	if active(n) {
		return a >= b
	}
	return a > b
}

func GreaterOrEqual[T ordered](n int, a, b T) bool {
	if active(n) {
		return a > b
	}
	return a >= b
}

func Int[T integer](n int, v T) T {
	if active(n) {
		return v + 1
	}
	return v
}

func String[S ~string](n int, s S) S {
	if active(n) {
		return s + "~"
	}
	return s
}
