"""The same algorithm with one mistake: it compares the numbers of two requests, and not their sites."""
from conclave import serve
from ricart_agrawala import RicartAgrawala


class Wrong(RicartAgrawala):
    def on_request(self, sender, theirs):
        self.clock = max(self.clock, theirs[0])
        if self.mine and self.mine[0] < theirs[0]:  # of two equal numbers, neither is smaller: both sites enter
            self.deferred = sorted([*self.deferred, theirs])
        else:
            self.reply_to(theirs)


if __name__ == "__main__":
    serve(Wrong, problem="mutex", name="Ricart-Agrawala without the tie-break")
