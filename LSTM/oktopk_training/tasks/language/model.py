"""The word model of the Penn Treebank: embedding, LSTM layers with dropout, a score for each word."""

from torch import nn

_DROPOUT = 0.65  # Zaremba et al. 2014, "Recurrent Neural Network Regularization", for the large model
_INITIAL_RANGE = 0.04  # the same source


class LSTMPTB(nn.Module):
    def __init__(self, words, hidden_size, hidden_layers):
        super().__init__()
        self.sizes = {"words": words, "hidden_size": hidden_size, "hidden_layers": hidden_layers}
        self.dropout = nn.Dropout(_DROPOUT)
        self.embedding = nn.Embedding(words, hidden_size)
        self.layers = nn.LSTM(hidden_size, hidden_size, hidden_layers, dropout=_DROPOUT if hidden_layers > 1 else 0)
        self.output = nn.Linear(hidden_size, words)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -_INITIAL_RANGE, _INITIAL_RANGE)

    def forward(self, words, state=None):
        """Steps x streams of word indices -> scores (steps x streams x words) and the state to continue from."""
        x, state = self.layers(self.dropout(self.embedding(words)), state)
        return self.output(self.dropout(x)), state
