from proxy.net.header_rules import connection_options, forwarded_headers, names_protected, response_head


def test_hop_by_hop_credentials_and_control_headers_stop_here():
    """Rows 34 and 35, L43, L64: none of them reaches a backend; everything else does, byte for byte."""
    kept = [
        (b"Anthropic-Beta", b"x-1"),
        (b"x-claude-code-session-id", b"s"),
        (b"session_id", b"codex"),
        (b"X-Odd", b"\xe9"),
    ]
    stopped = [
        (b"Connection", b"keep-alive, X-Named"), (b"X-Named", b"1"), (b"Keep-Alive", b"5"), (b"TE", b"trailers"),
        (b"Transfer-Encoding", b"chunked"), (b"Upgrade", b"h2c"), (b"HTTP2-Settings", b"x"),
        (b"Proxy-Authorization", b"x"),
        (b"authorization", b"Bearer secret"), (b"X-API-Key", b"secret"), (b"Cookie", b"a=b"), (b"Host", b"x"),
        (b"Content-Length", b"3"), (b"Expect", b"100-continue"), (b"X-data-parallel-rank", b"1"),
    ]  # fmt: skip

    assert forwarded_headers([*stopped, *kept], connection_options([b"keep-alive, X-Named"])) == tuple(kept)


def test_naming_an_end_to_end_header_in_connection_is_noticed():
    """Row 35: a client cannot have the content type or a key taken off behind us; such a request is refused."""
    assert names_protected(connection_options([b"close, Content-Type"]))
    assert names_protected(connection_options([b"close", b"authorization"]))
    assert not names_protected(connection_options([b"keep-alive, X-Named"]))


def test_underscore_twins_of_framing_and_credentials_are_dropped():
    """Row 9: a lenient server behind us must not read them as the real ones."""
    twins = [(b"Transfer_Encoding", b"chunked"), (b"content_length", b"9"), (b"x_api_key", b"k")]

    assert forwarded_headers(twins, frozenset()) == ()


def test_answers_lose_framing_and_cookies():
    """L71: no cookie of one user's answer is relayed; framing is each connection's own."""
    headers = [
        (b"date", b"d"), (b"Set-Cookie", b"a=b"), (b"transfer-encoding", b"chunked"), (b"content-length", b"3"),
        (b"Connection", b"keep-alive, X-Named"), (b"x-named", b"1"), (b"X-Request-Id", b"theirs"),
    ]  # fmt: skip

    assert response_head(200, b"OK", headers).headers == ((b"date", b"d"),)


def test_what_steers_the_relay_is_read_once():
    """Type, coding and framing, however they are spelled; type and coding still reach the client."""
    headers = [(b"Content-TYPE", b"Text/Event-Stream; charset=utf-8"), (b"Content-Encoding", b"GZIP")]
    head = response_head(200, b"OK", [*headers, (b"Transfer-Encoding", b"Chunked")])

    assert head.headers == tuple(headers)
    assert (head.content_type, head.is_encoded) == (b"text/event-stream; charset=utf-8", True)
    assert (head.is_chunked, head.content_length) == (True, None)
    assert response_head(200, b"OK", [(b"content-length", b"12")]).content_length == 12
