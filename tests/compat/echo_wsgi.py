"""A WSGI application that answers with the body it was sent."""


def echo(environ, start_response):
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(length)
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
