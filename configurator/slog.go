package configurator

import (
	"context"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// FromSlog returns a Logger for Config.Logger that writes to l. The handler of l selects the
// levels; SetLevel has no effect. The level trace becomes slog.LevelDebug-4.
func FromSlog(l *slog.Logger) hclog.Logger {
	return &slogLogger{Logger: hclog.NewNullLogger(), to: l, base: l}
}

const slogTrace = slog.LevelDebug - 4

// slogLogger is an hclog.Logger that writes to a slog.Logger. It inherits the remaining methods,
// such as writers for other packages, from a null logger.
type slogLogger struct {
	hclog.Logger
	to      *slog.Logger // with the name and the implied arguments
	base    *slog.Logger // without them
	name    string
	implied []any
}

func (s *slogLogger) Log(level hclog.Level, msg string, args ...any) {
	switch level {
	case hclog.Trace:
		s.Trace(msg, args...)
	case hclog.Debug:
		s.Debug(msg, args...)
	case hclog.Warn:
		s.Warn(msg, args...)
	case hclog.Error:
		s.Error(msg, args...)
	case hclog.Off:
	default:
		s.Info(msg, args...)
	}
}

func (s *slogLogger) Trace(msg string, args ...any) {
	s.to.Log(context.Background(), slogTrace, msg, args...)
}
func (s *slogLogger) Debug(msg string, args ...any) { s.to.Debug(msg, args...) }
func (s *slogLogger) Info(msg string, args ...any)  { s.to.Info(msg, args...) }
func (s *slogLogger) Warn(msg string, args ...any)  { s.to.Warn(msg, args...) }
func (s *slogLogger) Error(msg string, args ...any) { s.to.Error(msg, args...) }

func (s *slogLogger) enabled(l slog.Level) bool { return s.to.Enabled(context.Background(), l) }

func (s *slogLogger) IsTrace() bool { return s.enabled(slogTrace) }
func (s *slogLogger) IsDebug() bool { return s.enabled(slog.LevelDebug) }
func (s *slogLogger) IsInfo() bool  { return s.enabled(slog.LevelInfo) }
func (s *slogLogger) IsWarn() bool  { return s.enabled(slog.LevelWarn) }
func (s *slogLogger) IsError() bool { return s.enabled(slog.LevelError) }

// GetLevel returns the lowest enabled level.
func (s *slogLogger) GetLevel() hclog.Level {
	switch {
	case s.IsTrace():
		return hclog.Trace
	case s.IsDebug():
		return hclog.Debug
	case s.IsInfo():
		return hclog.Info
	case s.IsWarn():
		return hclog.Warn
	case s.IsError():
		return hclog.Error
	}
	return hclog.Off
}

func (s *slogLogger) ImpliedArgs() []any { return s.implied }
func (s *slogLogger) Name() string       { return s.name }

func (s *slogLogger) With(args ...any) hclog.Logger {
	implied := append(append([]any{}, s.implied...), args...)
	return &slogLogger{Logger: s.Logger, to: s.to.With(args...), base: s.base, name: s.name, implied: implied}
}

// Named adds the attribute "logger", with the names joined by dots.
func (s *slogLogger) Named(name string) hclog.Logger {
	if s.name != "" {
		name = s.name + "." + name
	}
	return s.ResetNamed(name)
}

func (s *slogLogger) ResetNamed(name string) hclog.Logger {
	return &slogLogger{Logger: s.Logger, to: s.base.With("logger", name).With(s.implied...), base: s.base, name: name, implied: s.implied}
}
