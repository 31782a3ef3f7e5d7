// How the site's search ranks its results: Sphinx reads it as `html_search_scorer`. Guides come first. What was decided, tried
// and measured comes last: it repeats the words of all guides.
const FIRST = /^(tutorial|guides\/)/;
const THEN = /^methods\//;
const LAST =
  /^(decisions|experiments|results)\/|^(all|findings|changes|contributing|explanation\/(architecture|life-of-a-block|scaling))$/;

var Scorer = {
  score: ([page, , , , score]) =>
    score + (FIRST.test(page) ? 10 : THEN.test(page) ? 5 : LAST.test(page) ? -1000 : 0),

  // below, Sphinx's own figures
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
