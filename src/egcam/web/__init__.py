"""The page: explain images in the browser. `egcam app` starts it; see `egcam.web.server.serve`.

Data flows one way: limits and choices turn what a browser sent into what egcam takes; the session computes with the one
shared model; fragments and downloads turn results into HTML and files; the page wires them up; the server serves it.

May use everything but studies; only the command uses it.
"""
