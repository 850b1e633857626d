// Phrases for which the search lists a page first. A phrase matches a search that has all its words, in any
// order and with any ending ("choosing a strength" has those of "choose strength"); other hits keep the order
// of Sphinx.
const FIRST_PAGES = {
  "explanation/privacy": ["privacy", "private", "security", "what the server sees"],
  "explanation/when-not": ["when not to use", "when does it help"],
  "howto/checkpoints": ["resume", "continue", "interrupted", "checkpoint"],
  "howto/cite": ["cite", "citation", "bibtex"],
  "howto/comparisons": ["compare", "comparison", "baseline"],
  "howto/data": ["own data", "own table", "csv", "load data"],
  "howto/deploy": ["deploy", "deployment", "hospital"],
  "howto/extending": ["own method", "own data set", "plugin"],
  "howto/flower": ["flower"],
  "howto/gpu": ["gpu", "gpus", "cuda"],
  "howto/graphs": ["choose graph", "own graph"],
  "howto/own-network": ["nn.module", "own network", "own model", "neural network"],
  "howto/peers": ["peers", "without server", "decentralised", "decentralized"],
  "howto/personal-models": ["predict", "join", "new client", "export model"],
  "howto/ray": ["ray", "scale out", "several workers"],
  "howto/report": ["report"],
  "howto/reproduce": ["reproduce"],
  "howto/scikit-learn": ["scikit-learn", "sklearn", "estimator"],
  "howto/strength": ["strength", "choose strength", "regularisation", "regularization", "eta"],
  "howto/tracking": ["tracking", "tensorboard", "wandb", "mlflow"],
  "howto/tuning": ["tune", "learning rate", "cross-validation"],
  "start/install": ["install", "installation", "pip"]
};
const MEANINGFUL = ["not", "own", "when", "without"]; // words that Sphinx ignores, unlike these phrases

const findStems = (text) => {
  const words = text.toLowerCase().split(/[^\p{L}\p{N}]+/u);
  const counted = words.filter((word) => word && (MEANINGFUL.includes(word) || !stopwords.has(word)));
  const stemmer = new Stemmer();
  return new Set(counted.map((word) => stemmer.stemWord(word)));
};

// The number of words in the longest phrase of a page that matches the search.
const countMatches = (page) => {
  const query = findStems(new URLSearchParams(window.location.search).get("q") || "");
  const phrases = (FIRST_PAGES[page] || []).map((phrase) => [...findStems(phrase)]);
  return Math.max(0, ...phrases.filter((stems) => stems.every((stem) => query.has(stem))).map((e) => e.length));
};

// Sphinx lists pages with all words of a search. Pages whose phrase matches are listed even if another word is
// missing. This script is loaded after Search and before the index.
const findPages = Search.performTermsSearch;
Search.performTermsSearch = (terms, excluded) => {
  const found = findPages(terms, excluded), { docnames, filenames, titles } = Search._index;
  docnames.forEach((page, k) => {
    if (countMatches(page) && !found.some((result) => result[0] === page))
      found.push([page, titles[k], "", null, 0, filenames[k], SearchResultKind.text]);
  });
  return found;
};

var Scorer = {
  // A result is [page, title, anchor, description, score, file, kind]; a page with a match is above its sections.
  score: (result) => result[4] + (countMatches(result[0]) ? 1000 * countMatches(result[0]) + (result[2] ? 0 : 100) : 0),
  // The rest are Sphinx's own values.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
