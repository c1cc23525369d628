// Package ui serves a page that shows the networks of a host: `allocnet ui`, and the daemon
// with the setting ui.
//
// The page only reads. Its files (directory page) contain nothing of the host, so they are
// served to everyone who reaches the address. Everything below /api/ needs the token, which
// the page finds in the fragment of its URL and sends in the header Authorization. A browser
// sends neither to other servers, nor on behalf of other pages, as it would a cookie.
//
// A request whose Host is not the address is refused: so a name of a foreign site that is
// resolved to this address (DNS rebinding) leads nowhere.
package ui
