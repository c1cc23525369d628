// Package strict decodes JSON strictly: unknown fields, fields in another case, duplicate
// keys, values of another type, invalid UTF-8 and trailing data are errors that name the
// field and its position.
package strict
